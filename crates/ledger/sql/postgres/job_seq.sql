-- The highest number given in a session, by its lane where the job is unfinished; 0 for none.
-- $1 lane, $2 session
SELECT greatest(
    (SELECT coalesce(max(seq), 0) FROM job WHERE lane = $1 AND node IS NOT NULL),
    (SELECT coalesce(max(seq), 0) FROM job WHERE lane = $1 AND node IS NULL AND due_at IS NULL),
    (SELECT coalesce(max(seq), 0) FROM job WHERE lane = $1 AND node IS NULL AND due_at IS NOT NULL),
    (SELECT coalesce(max(seq), 0) FROM job_finished WHERE session = $2)
)
