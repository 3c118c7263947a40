-- Unfinished jobs, newest first. A line with a mark is there only if the filter asks for it. A page ends early when
-- its payloads become too many bytes.
-- $1 before this id, $2 limit, $3 bytes after which a page ends, $4 session, $5 tenant, $6 pool, $7 kind, $8 state
SELECT *
FROM (
    SELECT j.*, sum(octet_length(payload)) OVER (ORDER BY id DESC) - (octet_length(payload)) AS text_before
    FROM (
        SELECT *
        FROM job
        WHERE id < $1
          AND session = $4 --? session
          AND tenant = $5 --? tenant
          AND pool = $6 --? pool
          AND kind = $7 --? kind
          AND state = $8 --? state
          AND stage IS NULL --? no_stage
        ORDER BY id DESC
        LIMIT $2
    ) AS j
) AS page
WHERE text_before < $3
ORDER BY id DESC
