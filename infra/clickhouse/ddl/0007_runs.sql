-- The life of runs: one row per event. The counts are those of the run up to the event.
CREATE TABLE IF NOT EXISTS runs /*ON CLUSTER*/
(
    run UUID,
    host LowCardinality(String),
    profiler LowCardinality(String),
    cause Enum8('continuous' = 1, 'on_demand' = 2, 'triggered' = 3, 'ring' = 4),
    state Enum8('queued' = 1, 'started' = 2, 'finished' = 3, 'failed' = 4, 'lost' = 5),
    time DateTime64(6, 'UTC'),
    detail String,
    planned_us UInt64,
    done_us UInt64,
    run_probability Float64,
    period UInt64,
    taken UInt64,
    spooled UInt64,
    idle UInt64,
    batches UInt64,
    drops Map(LowCardinality(String), UInt64) COMMENT 'Samples by reason',
    epoch UUID,
    sequence UInt64,
    part UInt32
)
ENGINE = /*Replicated*/ReplacingMergeTree
ORDER BY (run, state, host, epoch, sequence)
TTL toDate(time) + INTERVAL 31 DAY
SETTINGS
    non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000,
    replicated_deduplication_window_seconds = 604800;
