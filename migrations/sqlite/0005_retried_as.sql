-- The newest job that retries a finished one; NULL while no job does.
ALTER TABLE job_finished ADD COLUMN retried_as TEXT;
UPDATE job_finished
SET retried_as = r.id
FROM (
    SELECT retry_of, max(id) AS id
    FROM (
        SELECT retry_of, id FROM job WHERE retry_of IS NOT NULL
        UNION ALL
        SELECT retry_of, id FROM job_finished WHERE retry_of IS NOT NULL
    ) AS j
    GROUP BY retry_of
) AS r
WHERE job_finished.id = r.retry_of;

-- A dead job failed or timed out, and no job retries it.
DROP INDEX job_finished_dead;
CREATE INDEX job_finished_dead ON job_finished (id)
    WHERE outcome IN ('failed', 'timed_out') AND retried_as IS NULL;
-- What was retried, for a retry by filter that is asked for again under its key.
CREATE INDEX job_finished_retried ON job_finished (id) WHERE retried_as IS NOT NULL;
