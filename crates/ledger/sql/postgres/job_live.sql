-- Those of these jobs that are not finished, with how long each has been RUNNING.
-- $1 ids
SELECT *, greatest(0, floor(extract(epoch FROM now() - running_at) * 1000))::bigint AS running_for_ms
FROM job
WHERE id = ANY ($1::uuid[])
ORDER BY id
