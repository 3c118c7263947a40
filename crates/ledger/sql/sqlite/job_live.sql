-- Those of these jobs that are not finished, with how long each has been RUNNING.
-- ?1 JSON array of ids
SELECT *, coalesce(max(0, {now_ms} - running_at / 1000), 0) AS running_for_ms
FROM job
WHERE id IN (SELECT value FROM json_each(?1))
ORDER BY id
