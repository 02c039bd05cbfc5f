-- One row per (service, profiler, hour): what of its time was profiled, and the factor by which a sum of fleet weights of
-- that hour is corrected for what was refused or cut short. NULL where no run was completed: not sampled, which is not 0.
-- Slots count by their length, so that hosts with slots of different lengths add up. `cpu_seconds` are the account of the
-- kernel, and `profiled_cpu_seconds` are what the runs saw, weighted and corrected.
CREATE VIEW IF NOT EXISTS service_hours /*ON CLUSTER*/ AS
SELECT
    c.service AS service,
    c.profiler AS profiler,
    c.hour AS hour,
    uniqExact(c.host) AS hosts,
    sum(c.planned) AS planned,
    sum(c.refused) AS refused,
    sum(c.complete) AS complete,
    sum(c.cut_short) AS cut_short,
    sum(c.runs) AS runs,
    sum(c.taken) AS taken,
    sum(c.planned * c.slot_us) / 1e6 AS planned_seconds,
    sum(c.done_us) / 1e6 AS profiled_seconds,
    sum(c.u * c.slot_us) / 1e6 AS stood_for_seconds,
    if(stood_for_seconds > 0, planned_seconds / stood_for_seconds, NULL) AS correction,
    sum(c.t * c.slot_us) / 1e6 * correction AS profiled_cpu_seconds,
    sum(c.cpu_us) / 1e6 AS cpu_seconds
FROM (SELECT * FROM coverage FINAL) AS c
GROUP BY service, profiler, hour;
