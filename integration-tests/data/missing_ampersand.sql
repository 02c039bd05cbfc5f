-- Who copies vectors, and where? The line above each copy constructor, and the CPU time that the copies took.
SELECT path[copy - 1].1 AS caller, path[copy - 1].2 AS file, path[copy - 1].3 AS line,
       round(sum(weight) / 1e9, 2) AS cpu_seconds
FROM
(
    SELECT any(fleet_weight) AS weight,
           arrayMap(at -> at.2, arraySort(at -> at.1, groupArray(((depth, inline_depth), (function, file, line))))) AS path,
           arrayFirstIndex(at -> match(at.1, '^std::vector<.*>::vector\\(std::vector<.* const&\\)$'), path) AS copy
    FROM sample_frames
    WHERE service = 'orders'
    GROUP BY host, epoch, sequence, part, tid, time
)
WHERE copy > 1
GROUP BY ALL
ORDER BY cpu_seconds DESC
LIMIT 5
