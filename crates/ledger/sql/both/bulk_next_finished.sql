-- The next finished jobs that a bulk operation is about, the oldest first, among so many of one index; and the last of these,
-- with their number.
-- $3 limit; for the others see the parts
{bulk_scan_finished}
SELECT id, 0 AS jobs
FROM (
    SELECT id
    FROM scanned
    WHERE {bulk_match_finished}
    ORDER BY id
    LIMIT $3
) AS found
UNION ALL
SELECT id, (SELECT count(*) FROM scanned) AS jobs
FROM (SELECT id FROM scanned ORDER BY id DESC LIMIT 1) AS last_scanned
