-- A group's jobs that may be dispatched at once. A page ends early when its payloads become too many bytes.
-- $1 lane, $2 pool, $3 tenant, $4 labels, $5 route, $6 limit, $7 bytes after which a page ends
SELECT *
FROM (
    SELECT j.*, sum(octet_length(payload)) OVER (ORDER BY priority DESC, seq, id) - (octet_length(payload)) AS text_before
    FROM (
        SELECT * FROM job
        WHERE lane = $1 AND pool = $2 AND tenant = $3 AND requires = $4
          AND coalesce(route_source || ':' || route_target, '') = $5 AND node IS NULL AND due_at IS NULL
        ORDER BY priority DESC, seq, id
        LIMIT $6
    ) AS j
) AS page
WHERE text_before < $7
ORDER BY priority DESC, seq, id
