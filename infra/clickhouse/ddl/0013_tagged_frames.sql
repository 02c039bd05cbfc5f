-- One row per (sample, location) with the tags that the location itself has, by the newest generation, most have none.
-- `tagged_samples` has the tags of whole stacks.
CREATE OR REPLACE VIEW tagged_frames /*ON CLUSTER*/ AS
SELECT
    f.* EXCEPT (stack_id),
    t.frame_tags AS frame_tags
FROM (SELECT *, toUInt64(stack) AS stack_id FROM sample_frames) AS f
LEFT JOIN
(
    SELECT stack, context, depth, inline_depth, groupArray(tag) AS frame_tags
    FROM
    (
        SELECT stack, context, frame_tags.frame AS depths, frame_tags.inline AS inline_depths, frame_tags.tag AS list
        FROM tags FINAL
    )
    ARRAY JOIN depths AS depth, inline_depths AS inline_depth, list AS tag
    GROUP BY stack, context, depth, inline_depth
) AS t ON f.stack_id = t.stack AND f.context = t.context AND f.depth = t.depth AND f.inline_depth = t.inline_depth;
