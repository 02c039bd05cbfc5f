-- Who asked for what, who changed what, and what was refused. One that was said again has the same id: ask with FINAL. Kept for
-- more than a year, since whoever looks into something comes late.
CREATE TABLE IF NOT EXISTS audit /*ON CLUSTER*/
(
    id UUID,
    time DateTime64(6, 'UTC'),
    who String COMMENT 'The principal of the signature, or else who it says that it is',
    proved Bool COMMENT 'Whether a signature proved who',
    reporter LowCardinality(String) COMMENT 'Who says so',
    action Enum8('profile' = 1, 'trigger' = 2, 'ring' = 3, 'cancel' = 4, 'configure' = 5, 'limit' = 6, 'lift' = 7, 'stop' = 8, 'start' = 9, 'unreadable' = 10),
    outcome Enum8('asked' = 1, 'allowed' = 2, 'refused' = 3, 'ended' = 4, 'done' = 5),
    reason LowCardinality(String) COMMENT 'Why it was refused, or how it ended, in one word',
    detail String,
    subject String COMMENT 'Name of the request, or of what was configured',
    service LowCardinality(String),
    profiler LowCardinality(String),
    target String COMMENT 'Which hosts and processes',
    why String COMMENT 'What it is for, as whoever asked says'
)
ENGINE = /*Replicated*/ReplacingMergeTree
ORDER BY (time, id)
TTL toDate(time) + INTERVAL 400 DAY
SETTINGS
    non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000,
    replicated_deduplication_window_seconds = 604800;
