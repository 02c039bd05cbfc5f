-- Where does each function of ours spend its time, what it calls in libraries included? The innermost line of our own file.
SELECT own.1 AS function, own.2 AS file, own.3 AS line, round(sum(weight) / 1e9, 2) AS cpu_seconds
FROM
(
    SELECT any(fleet_weight) AS weight, argMax((function, file, line), (depth, inline_depth)) AS own
    FROM sample_frames
    WHERE service = 'catalog' AND file LIKE '%/catalog.cpp'
    GROUP BY host, epoch, sequence, part, tid, time
)
GROUP BY ALL
ORDER BY cpu_seconds DESC
LIMIT 5
