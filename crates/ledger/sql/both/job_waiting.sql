-- A group's jobs that may be dispatched at once. A page ends early when its payloads become too many bytes.
-- $1 lane, $2 pool, $3 tenant, $4 limit, $5 bytes after which a page ends
SELECT *
FROM (
    SELECT j.*, sum(octet_length(payload)) OVER (ORDER BY priority DESC, seq, id) - (octet_length(payload)) AS text_before
    FROM (
        SELECT * FROM job
        WHERE lane = $1 AND pool = $2 AND tenant = $3 AND node IS NULL AND due_at IS NULL
        ORDER BY priority DESC, seq, id
        LIMIT $4
    ) AS j
) AS page
WHERE text_before < $5
ORDER BY priority DESC, seq, id
