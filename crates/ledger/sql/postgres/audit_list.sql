-- The newest first. A page ends early when what its entries say of changes becomes too many bytes. A line with a mark is there
-- only if the filter asks for it.
-- $1 principal, $2 action, $3 subject, $4 from then on, in microseconds, $5 below this id, $6 limit,
-- $7 bytes after which a page ends
SELECT id, at, principal, action, subject, before, after, reason, request_id
FROM (
    SELECT sized.*, sum(bytes) OVER (ORDER BY id DESC) - bytes AS bytes_before
    FROM (
        SELECT id, at, principal, action, subject, before, after, reason, request_id,
               coalesce(octet_length(before), 0) + coalesce(octet_length(after), 0) AS bytes
        FROM audit
        WHERE at >= to_timestamp($4 / 1000000.0) AND id < $5
          AND principal = $1 --? principal
          AND action = $2 --? action
          AND subject = $3 --? subject
        ORDER BY id DESC
        LIMIT $6
    ) AS sized
) AS page
WHERE bytes_before < $7
ORDER BY id DESC
