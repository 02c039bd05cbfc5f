-- Samples with the tags of their stacks, by the newest generation. A sample without tags is here too, with none.
-- `ARRAY JOIN tags AS tag` makes one row of each (sample, tag).
CREATE OR REPLACE VIEW tagged_samples /*ON CLUSTER*/ AS
SELECT
    s.service AS service,
    s.profiler AS profiler,
    s.time AS time,
    s.stack AS stack,
    s.fleet_weight AS fleet_weight,
    s.run_weight AS run_weight,
    s.host AS host,
    s.pid AS pid,
    s.tid AS tid,
    s.thread AS thread,
    s.executable AS executable,
    s.container AS container,
    s.cpu AS cpu,
    s.cause AS cause,
    s.run AS run,
    s.epoch AS epoch,
    s.sequence AS sequence,
    s.part AS part,
    s.context AS context,
    t.tags AS tags,
    t.schemas AS schemas
FROM (SELECT *, toUInt64(stack) AS stack_id FROM samples) AS s
LEFT JOIN (SELECT stack, context, tags, schemas FROM tags FINAL) AS t
    ON s.stack_id = t.stack AND s.context = t.context;
