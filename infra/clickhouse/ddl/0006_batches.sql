-- One row per batch: its interval and what was counted in it. `taken`, `idle` and `drops` of a batch that was split
-- are on its first part only, so that sums over parts hold.
CREATE TABLE IF NOT EXISTS batches /*ON CLUSTER*/
(
    host LowCardinality(String),
    epoch UUID,
    sequence UInt64,
    part UInt32,
    run UUID,
    profiler LowCardinality(String),
    cause Enum8('continuous' = 1, 'on_demand' = 2, 'triggered' = 3, 'ring' = 4),
    batch_index UInt32,
    start_time DateTime64(6, 'UTC'),
    end_time DateTime64(6, 'UTC'),
    samples UInt64,
    taken UInt64,
    idle UInt64,
    enabled_ns UInt64,
    running_ns UInt64,
    drops Map(LowCardinality(String), UInt64) COMMENT 'Samples by reason',
    inserted DateTime DEFAULT now()
)
ENGINE = /*Replicated*/ReplacingMergeTree
ORDER BY (host, epoch, sequence, part)
TTL toDate(start_time) + INTERVAL 31 DAY
SETTINGS
    non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000,
    replicated_deduplication_window_seconds = 604800;
