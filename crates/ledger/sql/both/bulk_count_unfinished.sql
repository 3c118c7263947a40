-- How many unfinished jobs a bulk operation is about, among so many, with the number and the last of these.
-- $3 not used; for the others see the parts
{bulk_scan_unfinished}
SELECT (
        SELECT count(*)
        FROM scanned
        WHERE {bulk_match_unfinished}
    ) AS matching,
    (SELECT count(*) FROM scanned) AS jobs, (SELECT id FROM scanned ORDER BY id DESC LIMIT 1) AS last_scanned
