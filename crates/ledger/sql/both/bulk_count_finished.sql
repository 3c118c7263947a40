-- How many finished jobs a bulk operation is about, among so many of one index, with the number and the last of these.
-- $3 not used; for the others see the parts
{bulk_scan_finished}
SELECT (
        SELECT count(*)
        FROM scanned
        WHERE {bulk_match_finished}
    ) AS matching,
    (SELECT count(*) FROM scanned) AS jobs, (SELECT id FROM scanned ORDER BY id DESC LIMIT 1) AS last_scanned
