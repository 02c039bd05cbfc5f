-- What do the CPUs of this host pay for? CPU time by tag, of which a stack may have several.
SELECT tag, round(sum(fleet_weight) / 1e9, 2) AS cpu_seconds,
       round(100 * sum(fleet_weight) / (SELECT sum(fleet_weight) FROM samples), 1) AS per_cent
FROM tagged_samples
ARRAY JOIN tags AS tag
GROUP BY tag
ORDER BY cpu_seconds DESC
LIMIT 10
