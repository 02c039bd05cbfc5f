-- What became of the slots of a (service, profiler, host) in an hour: what was planned, refused, run, cut short. Service '*'
-- is the whole host. A record comes again, whole and with a higher revision, when it changes, and the highest counts. `runs`,
-- `u`, ... are sums over completed runs, from which corrections and spreads are made (`service_hours`).
CREATE TABLE IF NOT EXISTS coverage /*ON CLUSTER*/
(
    service LowCardinality(String),
    profiler LowCardinality(String),
    host LowCardinality(String),
    hour DateTime('UTC'),
    until DateTime64(6, 'UTC') COMMENT 'Up to when the record counts',
    slot_us UInt64 COMMENT 'Length of the slots',
    revision UInt64,
    planned UInt64 COMMENT 'Slots at whose moment the service was present',
    refused UInt64 COMMENT 'Slots that were drawn and could not run',
    complete UInt64,
    cut_short UInt64,
    drawn_inverse Float64 COMMENT 'Sum of 1/q over the slots that were drawn',
    done_us UInt64 COMMENT 'Time profiled',
    taken UInt64 COMMENT 'Samples taken, before limits, losses and thinning',
    cpu_us UInt64 COMMENT 'CPU time by the account of the kernel',
    cpu_source Enum8('unknown' = 0, 'control_group' = 1, 'processes' = 2, 'host' = 3),
    runs UInt64,
    u Float64 COMMENT 'Sum of (time done / time planned) / q',
    uu Float64,
    t Float64 COMMENT 'Sum of busy CPUs times the slots that a run stands for',
    tt Float64,
    tu Float64,
    epoch UUID COMMENT 'Of the spool of the host: after a restart the rest of the hour is another row, which adds to the first'
)
ENGINE = /*Replicated*/ReplacingMergeTree(revision)
PARTITION BY toStartOfMonth(hour)
ORDER BY (service, profiler, hour, host, epoch, slot_us)
TTL toDate(hour) + INTERVAL 31 DAY
SETTINGS
    non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000,
    replicated_deduplication_window_seconds = 604800;
