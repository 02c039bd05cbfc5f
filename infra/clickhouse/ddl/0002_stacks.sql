-- What a stack is: its frames as they were on the wire, root first. Written again once per day of use, expires by last use.
--
-- Order: by frames, so that neighbours share their prefixes, in blocks of 4 MiB, so that the compressor sees the
-- neighbours: 53 bytes per stack of 38 frames, where an order by stack took 245. The two halves of the key are hashes
-- and stay 16 bytes. A collision of the low halves shows as two rows of one `stack` (`uniq(stack_high) > 1`).
CREATE TABLE IF NOT EXISTS stacks /*ON CLUSTER*/
(
    stack UInt64 CODEC(NONE) COMMENT 'Low 64 bits of the stack key: what samples hold',
    stack_high UInt64 CODEC(NONE) COMMENT 'High 64 bits of the stack key',
    stack_key UInt128 ALIAS bitOr(bitShiftLeft(toUInt128(stack_high), 64), toUInt128(stack)),
    frames Array(UInt64) CODEC(ZSTD(6)) SETTINGS (min_compress_block_size = 4194304, max_compress_block_size = 4194304),
    end Enum8('root' = 1, 'depth' = 2, 'unreadable' = 3, 'bad_frame_pointer' = 4, 'kernel_only' = 5, 'in_exec' = 6,
        'compat32' = 7, 'forgotten' = 8, 'bad_return_address' = 9, 'unknown_mapping' = 10, 'unsupported' = 11, 'no_table' = 12,
        'before_tables' = 13, 'no_room' = 14) CODEC(ZSTD(1)),
    day Date CODEC(ZSTD(1)) COMMENT 'Last day of use',
    -- A single stack is found without reading all keys.
    INDEX by_stack stack TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = /*Replicated*/ReplacingMergeTree(day)
PRIMARY KEY tuple()
ORDER BY (frames, stack, stack_high)
TTL day + INTERVAL 31 DAY
SETTINGS
    non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000,
    replicated_deduplication_window_seconds = 604800;
