-- One row per (sample, location): every column of the sample, and where its stack was. A function is anywhere in the
-- stacks that have a row for it, so sum per distinct (sample, function) where recursion must count once.
CREATE OR REPLACE VIEW sample_frames /*ON CLUSTER*/ AS
SELECT
    s.service AS service,
    s.profiler AS profiler,
    s.time AS time,
    s.stack AS stack,
    s.fleet_weight AS fleet_weight,
    s.run_weight AS run_weight,
    s.host AS host,
    s.pid AS pid,
    s.tid AS tid,
    s.thread AS thread,
    s.executable AS executable,
    s.container AS container,
    s.cpu AS cpu,
    s.cause AS cause,
    s.run AS run,
    s.epoch AS epoch,
    s.sequence AS sequence,
    s.part AS part,
    s.context AS context,
    l.depth AS depth,
    l.frame AS frame,
    l.inline_depth AS inline_depth,
    l.function AS function,
    l.file AS file,
    l.line AS line,
    l.module AS module,
    l.inlined AS inlined,
    l.self AS self,
    l.reason AS reason,
    l.end AS end
FROM (SELECT *, toUInt64(stack) AS stack_id FROM samples) AS s
INNER JOIN stack_locations AS l ON s.stack_id = l.stack;
