-- Ends that older tables do not have. Values are only ever added, so that this changes no row.
ALTER TABLE stacks /*ON CLUSTER*/
    MODIFY COLUMN IF EXISTS end Enum8('root' = 1, 'depth' = 2, 'unreadable' = 3, 'bad_frame_pointer' = 4, 'kernel_only' = 5, 'in_exec' = 6,
        'compat32' = 7, 'forgotten' = 8, 'bad_return_address' = 9, 'unknown_mapping' = 10, 'unsupported' = 11, 'no_table' = 12,
        'before_tables' = 13, 'no_room' = 14) CODEC(ZSTD(1));
