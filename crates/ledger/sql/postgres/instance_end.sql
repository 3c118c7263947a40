-- Ends the leases of incarnations that ran out long ago and that nobody has taken since. One that was only away, as while the ledger
-- was, finds its lease lost then, and does not go on without the row that instance_purge deletes. Rows are locked in one order, and
-- locked ones are passed over: they are being renewed or taken. However the server joins them, it reads no leases but those of
-- instances.
-- $1 age in ms, $2 limit
WITH old AS (
    SELECT l.resource
    FROM instance i
    JOIN lease l ON l.resource = 'instance:' || i.instance_id AND l.owner = i.instance_id
    WHERE l.resource BETWEEN 'instance:' AND 'instance:~'
      AND l.expires_at < now() - $1 * interval '1 millisecond'
    ORDER BY l.resource
    LIMIT $2
    FOR NO KEY UPDATE OF l SKIP LOCKED
)
UPDATE lease l
SET owner = NULL
FROM old
WHERE l.resource = old.resource AND l.resource BETWEEN 'instance:' AND 'instance:~'
