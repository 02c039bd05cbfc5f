-- What a frame is called. The row of the highest generation counts, so a name that is found later replaces its
-- absence, and no absence replaces a name. Written again once per day of use, expires by last use.
CREATE TABLE IF NOT EXISTS frames /*ON CLUSTER*/
(
    frame UInt64 CODEC(ZSTD(1)) COMMENT 'Frame key',
    generation UInt64 CODEC(ZSTD(1)) COMMENT '255 with a name, 254 without, times 2^52, plus when it was made: microseconds since 1970',
    functions Array(String) CODEC(ZSTD(3)) COMMENT 'Outermost first, all but the first inlined, empty where reason says why',
    files Array(String) CODEC(ZSTD(3)),
    lines Array(UInt32) CODEC(ZSTD(3)),
    module LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'Path of the binary, [kernel], or the kernel module',
    build_id String CODEC(ZSTD(1)) COMMENT 'Lower-case hexadecimal digits',
    kind Enum8('unknown' = 0, 'gnu' = 1, 'go' = 2, 'file_hash' = 3, 'kernel' = 4, 'kernel_module' = 5, 'vdso' = 6,
        'name' = 7) CODEC(ZSTD(1)),
    address UInt64 CODEC(ZSTD(1)) COMMENT 'ELF virtual address, or for the kernel its offset from the start of its text',
    reason LowCardinality(String) CODEC(ZSTD(1)) COMMENT 'Why there is no name, empty when there is one',
    day Date CODEC(ZSTD(1)) COMMENT 'Last day of use',
    inserted DateTime DEFAULT now() CODEC(ZSTD(1)) COMMENT 'By the clock of the store: readers with a cache ask what is new'
)
ENGINE = /*Replicated*/ReplacingMergeTree(generation)
ORDER BY frame
TTL day + INTERVAL 31 DAY
SETTINGS
    non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000,
    replicated_deduplication_window_seconds = 604800;
