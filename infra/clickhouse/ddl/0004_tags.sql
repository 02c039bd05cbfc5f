-- What stack schemas say of a stack in a context: its tags, tags of single frames, and marks of what views leave out or
-- rename. The row of the highest generation counts, so `strobe retag` adds rows and changes none. Written again once per
-- day of use, expires by last use.
--
-- A context stands for the values beside it: service and profiler, and those of `labels` that a schema asked for. Samples
-- hold its key. Places count frames from the root and locations within a frame, both from 0, as `stack_locations` does.
CREATE TABLE IF NOT EXISTS tags /*ON CLUSTER*/
(
    stack UInt64 CODEC(ZSTD(1)) COMMENT 'Low 64 bits of the stack key: what samples hold',
    context UInt64 CODEC(ZSTD(1)) COMMENT 'Key of the context: what samples hold',
    generation UInt64 CODEC(ZSTD(1)) COMMENT '255 less the frames without a name, times 2^52, plus when the tags were made: microseconds since 1970',
    service LowCardinality(String) CODEC(ZSTD(1)),
    profiler LowCardinality(String) CODEC(ZSTD(1)),
    labels Map(String, String) CODEC(ZSTD(1)) COMMENT 'Other values of the context: region, host, label NAME, annotation NAME',
    tags Array(LowCardinality(String)) CODEC(ZSTD(1)) COMMENT 'key=value, or a path as io/disk/read',
    frame_tags Nested
    (
        frame UInt16,
        inline UInt16,
        tag LowCardinality(String)
    ),
    marks Nested
    (
        frame UInt16,
        inline UInt16,
        kind Enum8('hidden' = 1, 'folded' = 2, 'cut' = 3, 'renamed' = 4),
        text LowCardinality(String)
    ) COMMENT 'text is the name that is shown, or the schema that leaves the location out',
    schemas Array(LowCardinality(String)) CODEC(ZSTD(1)) COMMENT 'The schemas in force, each with its version, as cpp@3',
    day Date CODEC(ZSTD(1)) COMMENT 'Last day of use',
    inserted DateTime DEFAULT now() CODEC(ZSTD(1)) COMMENT 'By the clock of the store: readers with a cache ask what is new'
)
ENGINE = /*Replicated*/ReplacingMergeTree(generation)
ORDER BY (stack, context)
TTL day + INTERVAL 31 DAY
SETTINGS
    non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000,
    replicated_deduplication_window_seconds = 604800;
