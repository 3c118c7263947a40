-- Ends the leases of incarnations that ran out long ago and that nobody has taken since. One that was only away, as while its machine
-- slept, finds its lease lost then, and does not go on without the row that instance_purge deletes. CROSS JOIN has SQLite read the
-- few instances and look up the lease of each, and not read all leases.
-- ?1 age in ms, ?2 limit
UPDATE lease
SET owner = NULL
WHERE resource IN (
    SELECT l.resource
    FROM instance i
    CROSS JOIN lease l ON l.resource = 'instance:' || i.instance_id AND l.owner = i.instance_id
    WHERE l.expires_at < {now} - ?1 * 1000
    ORDER BY i.instance_id
    LIMIT ?2
)
