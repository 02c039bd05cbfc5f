-- The tags of a stack in a context. The row of the highest generation counts.
CREATE TABLE IF NOT EXISTS stack_tags /*ON CLUSTER*/
(
    stack UInt64 CODEC(ZSTD(1)),
    context UInt64 CODEC(ZSTD(1)),
    generation UInt64 CODEC(ZSTD(1)),
    tags Array(LowCardinality(String)) CODEC(ZSTD(1)),
    day Date CODEC(ZSTD(1)) COMMENT 'Last day of use'
)
ENGINE = /*Replicated*/ReplacingMergeTree(generation)
ORDER BY (stack, context)
TTL day + INTERVAL 31 DAY
SETTINGS
    non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000,
    replicated_deduplication_window_seconds = 604800;
