-- A lane's jobs that are CREATED, in the order of their places in its session, and in how many milliseconds each is
-- due. A page ends early when its payloads become too many bytes.
-- ?1 lane, ?2 session, ?3 behind this place, ?4 limit, ?5 bytes after which a page ends
SELECT *
FROM (
    SELECT j.*, sum(octet_length(payload)) OVER (ORDER BY seq, id) - (octet_length(payload)) AS text_before
    FROM (
        SELECT *, max(0, coalesce(due_at - {now} + 999, 0) / 1000) AS due_in_ms
        FROM job
        WHERE session = ?2 AND seq > ?3 AND lane = ?1 AND node IS NULL
        ORDER BY seq, id
        LIMIT ?4
    ) AS j
) AS page
WHERE text_before < ?5
ORDER BY seq, id
