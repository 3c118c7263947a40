-- A group's jobs that may be dispatched at once. A page ends early when its payloads become too many bytes.
-- $1 lane, $2 group, $3 limit, $4 bytes after which a page ends
SELECT *
FROM (
    SELECT j.*, sum(octet_length(payload)) OVER (ORDER BY priority DESC, seq, id) - (octet_length(payload)) AS text_before
    FROM (
        SELECT * FROM job
        WHERE lane = $1 AND node IS NULL AND due_at IS NULL
          AND pool || '/' || tenant || '/' || requires || '/' || coalesce(route_source || ':' || route_target, '') = $2
        ORDER BY priority DESC, seq, id
        LIMIT $3
    ) AS j
) AS page
WHERE text_before < $4
ORDER BY priority DESC, seq, id
