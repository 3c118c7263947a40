-- The newest job that retries a finished one; NULL while no job does.
ALTER TABLE job_finished ADD COLUMN retried_as uuid;
UPDATE job_finished AS f
SET retried_as = r.id
FROM (
    SELECT DISTINCT ON (retry_of) retry_of, id
    FROM (
        SELECT retry_of, id FROM job WHERE retry_of IS NOT NULL
        UNION ALL
        SELECT retry_of, id FROM job_finished WHERE retry_of IS NOT NULL
    ) AS j
    ORDER BY retry_of, id DESC
) AS r
WHERE f.id = r.retry_of;

-- A dead job failed or timed out, and no job retries it.
DROP INDEX job_finished_dead;
CREATE INDEX job_finished_dead ON job_finished (id)
    WHERE outcome IN ('failed', 'timed_out') AND retried_as IS NULL;
-- What was retried, for a retry by filter that is asked for again under its key.
CREATE INDEX job_finished_retried ON job_finished (id) WHERE retried_as IS NOT NULL;
