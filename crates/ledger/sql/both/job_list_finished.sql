-- Finished jobs, newest first. A line with a mark is there only if the filter asks for it. A page ends early when
-- its payloads and results become too many bytes.
-- $1 before this id, $2 limit, $3 bytes after which a page ends, $4 session, $5 tenant, $6 pool, $7 kind, $8 outcome
SELECT *
FROM (
    SELECT j.*, sum(octet_length(payload) + coalesce(octet_length(result), 0)) OVER (ORDER BY id DESC) - (octet_length(payload) + coalesce(octet_length(result), 0)) AS text_before
    FROM (
        SELECT *
        FROM job_finished
        WHERE id < $1
          AND session = $4 --? session
          AND tenant = $5 AND tenant <> '' --? tenant
          AND pool = $6 AND pool <> '' --? pool
          AND kind = $7 --? kind
          AND outcome = $8 --? outcome
          AND outcome <> 'succeeded' --? unsuccessful
          AND outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL --? dead
          AND NOT (outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL) --? not_dead
          AND retried_as IS NOT NULL --? retried
          AND retried_as IS NULL --? not_retried
          AND stage IS NULL --? no_stage
        ORDER BY id DESC
        LIMIT $2
    ) AS j
) AS page
WHERE text_before < $3
ORDER BY id DESC
