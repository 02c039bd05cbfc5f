-- One row per location of a stack, by its names of the highest generation: what `sample_frames` joins.
-- `depth` counts frames from the root (0), `inline_depth` is 0 for a function itself and counts up through what was
-- inlined into it. A frame without a name is one row that reads as its reason. `self` marks the row where the time
-- was spent.
CREATE OR REPLACE VIEW stack_locations /*ON CLUSTER*/ AS
SELECT
    k.stack AS stack,
    k.end AS end,
    toUInt16(k.position - 1) AS depth,
    k.frame AS frame,
    toUInt16(place - 1) AS inline_depth,
    function,
    file,
    line,
    f.module AS module,
    toUInt8(place > 1) AS inlined,
    toUInt8(k.position = k.depth_max AND place = length(f.names)) AS self,
    f.reason AS reason
FROM
(
    SELECT stack, end, depth_max, frame, position
    FROM
    (
        -- A stack has a row for each day of use until they are merged, any of them will do.
        SELECT stack, any(stacks.frames) AS list, any(stacks.end) AS end, length(list) AS depth_max
        FROM stacks
        GROUP BY stack
    )
    ARRAY JOIN list AS frame, arrayEnumerate(list) AS position
) AS k
INNER JOIN
(
    SELECT
        frame,
        module,
        reason,
        if(empty(functions), [transform(reason,
            ['process_gone', 'no_mapping', 'anonymous', 'unreadable', 'missing_binary', 'missing_symbols',
             'no_symbol_at_address', 'binary_refused', 'over_limit', 'damaged', 'kernel_hidden'],
            ['[process gone before it could be read]', '[address outside of every mapping]',
             '[generated code without a map]', '[file could not be read]', '[binary not in the symbol store]',
             '[binary has no symbols]', '[no symbol at this address]', '[binary ended the symbolizer twice]',
             '[binary over the symbolizer\'s limits]', '[damaged binary]', '[kernel symbol hidden]'],
            '[unknown]')], functions) AS names,
        arrayResize(files, length(names)) AS name_files,
        arrayResize(lines, length(names)) AS name_lines
    FROM frames FINAL
) AS f ON k.frame = f.frame
ARRAY JOIN
    f.names AS function,
    f.name_files AS file,
    f.name_lines AS line,
    arrayEnumerate(f.names) AS place;
