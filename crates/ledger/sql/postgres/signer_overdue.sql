-- The next signers that hold nonces, in the order of their names, and of each whether it has holds that ran out and no other
-- live instance owns it. An instance lives while its own lease does. Of each signer the first live entry of the index is read, whatever it holds.
-- $1 the instance that asks, $2 behind this signer, $3 how many signers, $4 how far ahead of the time to look, in ms
WITH RECURSIVE holder AS (
    (
        SELECT signer, held_until
        FROM signer_nonce_allocation
        WHERE status = 'HELD' AND signer > $2
        ORDER BY signer, held_until
        LIMIT 1
    )
    UNION ALL
    SELECT next.signer, next.held_until
    FROM holder h
    CROSS JOIN LATERAL (
        SELECT a.signer, a.held_until
        FROM signer_nonce_allocation a
        WHERE a.status = 'HELD' AND a.signer > h.signer
        ORDER BY a.signer, a.held_until
        LIMIT 1
    ) AS next
)
SELECT h.signer,
       h.held_until <= now() + $4 * interval '1 millisecond'
       AND (
           SELECT count(*)
           FROM lease l
           JOIN lease i ON i.resource = 'instance:' || l.owner
           WHERE l.resource = 'signer:' || h.signer AND l.owner <> $1 AND l.expires_at > now()
             AND i.owner = l.owner AND i.expires_at > now()
       ) = 0 AS is_overdue
FROM (SELECT signer, held_until FROM holder LIMIT $3) AS h
