-- The next signers that hold nonces, in the order of their names, and of each whether it has holds that ran out and no other
-- live instance owns it. An instance lives while its own lease does. Of each signer the first live entry of the index is read, whatever it holds. nonce_holes says why the index is named.
-- ?1 the instance that asks, ?2 behind this signer, ?3 how many signers, ?4 how far ahead of the time to look, in ms
WITH RECURSIVE holder AS (
    SELECT (SELECT min(signer) FROM signer_nonce_allocation INDEXED BY signer_nonce_held
            WHERE status = 'HELD' AND signer > ?2) AS signer
    UNION ALL
    SELECT (SELECT min(a.signer) FROM signer_nonce_allocation a INDEXED BY signer_nonce_held
            WHERE a.status = 'HELD' AND a.signer > h.signer)
    FROM holder h
    WHERE h.signer IS NOT NULL
    LIMIT ?3
)
SELECT h.signer,
       (SELECT min(held_until) FROM signer_nonce_allocation INDEXED BY signer_nonce_held
        WHERE signer = h.signer AND status = 'HELD')
       <= {now} + ?4 * 1000
       AND NOT EXISTS (
           SELECT 1 FROM lease l
           JOIN lease i ON i.resource = 'instance:' || l.owner
           WHERE l.resource = 'signer:' || h.signer AND l.owner <> ?1
             AND l.expires_at > {now}
             AND i.owner = l.owner AND i.expires_at > {now}
       ) AS is_overdue
FROM holder h
WHERE h.signer IS NOT NULL
