-- A lane's jobs that are DISPATCHED or RUNNING, with how long each has been RUNNING. A page ends early when its payloads become
-- too many bytes.
-- ?1 lane, ?2 after this id, ?3 limit, ?4 bytes after which a page ends
SELECT *
FROM (
    SELECT j.*, sum(octet_length(payload)) OVER (ORDER BY id) - (octet_length(payload)) AS text_before
    FROM (
        SELECT *, coalesce(max(0, {now_ms} - running_at / 1000), 0) AS running_for_ms
        FROM job
        WHERE lane = ?1 AND node IS NOT NULL AND id > ?2
        ORDER BY id
        LIMIT ?3
    ) AS j
) AS page
WHERE text_before < ?4
ORDER BY id
