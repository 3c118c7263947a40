-- A lane's delayed jobs that are due or soon will be. A page ends early when its payloads become too many bytes.
-- ?1 lane, ?2 due within this many ms, ?3 limit, ?4 bytes after which a page ends, ?5 ?6 after this due time
-- (microseconds since 1970) and id
SELECT *
FROM (
    SELECT j.*, sum(octet_length(payload)) OVER (ORDER BY due_at, id) - (octet_length(payload)) AS text_before
    FROM (
        SELECT *, max(0, (due_at - {now} + 999) / 1000) AS due_in_ms
        FROM job
        WHERE lane = ?1 AND node IS NULL AND due_at IS NOT NULL AND due_at <= {now} + ?2 * 1000
          AND (due_at, id) > (?5, ?6)
        ORDER BY due_at, id
        LIMIT ?3
    ) AS j
) AS page
WHERE text_before < ?4
ORDER BY due_at, id
