-- Deletes old finished jobs; answers the session and place of each.
-- ?1 age in ms, ?2 limit
DELETE FROM job_finished
WHERE id IN (
    SELECT id FROM job_finished
    WHERE finished_at < CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - ?1 * 1000
    ORDER BY finished_at
    LIMIT ?2
)
RETURNING session, seq
