-- One narrow row per sample, never rewritten. What its stack looks like, what that is called and how it is tagged
-- lies beside, in `stacks`, `frames` and `tags`.
--
-- Order: minutes of a service, then host and CPU, so that what a run repeats (host, run, process, CPU) lies together
-- however many hosts of the service ran at once. Sorted by time alone, the same rows took 12 % more.
-- `stack` is a LowCardinality of hashes: 8 bytes that nothing compresses, but few distinct ones per 8,192 rows
-- (1.5 bytes per sample instead of 2.8, and GROUP BY takes half of the time).
-- The identity (host, epoch, sequence, part) says which batch a row came with, and only these rows mean "stored".
CREATE TABLE IF NOT EXISTS samples /*ON CLUSTER*/
(
    service LowCardinality(String) CODEC(ZSTD(1)),
    profiler LowCardinality(String) CODEC(ZSTD(1)),
    time DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    stack LowCardinality(UInt64) CODEC(ZSTD(1)) COMMENT 'Low 64 bits of the stack key',
    fleet_weight Float64 CODEC(ZSTD(1)) COMMENT 'Events of the fleet it stands for: nanoseconds for cpu, 0 unless continuous',
    run_weight Float64 CODEC(ZSTD(1)) COMMENT 'Events of its run it stands for: nanoseconds for cpu',
    host LowCardinality(String) CODEC(ZSTD(1)),
    pid UInt32 CODEC(ZSTD(1)),
    tid UInt32 CODEC(ZSTD(3)),
    thread LowCardinality(String) CODEC(ZSTD(1)),
    executable LowCardinality(String) CODEC(ZSTD(1)),
    container LowCardinality(String) CODEC(ZSTD(1)),
    cpu UInt16 CODEC(ZSTD(1)),
    cause Enum8('continuous' = 1, 'on_demand' = 2, 'triggered' = 3, 'ring' = 4) CODEC(ZSTD(1)),
    run UUID CODEC(ZSTD(1)),
    epoch UUID CODEC(ZSTD(1)),
    sequence UInt64 CODEC(ZSTD(3)),
    part UInt32 CODEC(ZSTD(1)),
    context UInt64 DEFAULT 0 CODEC(ZSTD(1)) COMMENT 'Key of the context that tags depend on, 0 where it is not known',
    -- The stored sequences of a spool without reading samples, and never apart from the rows.
    PROJECTION identities
    (
        SELECT host, epoch, sequence, part, run, count() GROUP BY host, epoch, sequence, part, run
    )
)
ENGINE = /*Replicated*/MergeTree
PARTITION BY toDate(time)
PRIMARY KEY (service, profiler, toStartOfMinute(time), host)
ORDER BY (service, profiler, toStartOfMinute(time), host, cpu, time)
TTL toDate(time) + INTERVAL 30 DAY
SETTINGS
    -- A repeat with the same token is recognized among this many inserts before it, whichever engine it is.
    non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000,
    replicated_deduplication_window_seconds = 604800,
    ttl_only_drop_parts = 1,
    allow_suspicious_low_cardinality_types = 1;
