-- Signers whose holds ran out and that nobody else owns. Looks at the longest overdue holds only, so that
-- its cost has a bound.
-- ?1 the instance that asks, ?2 limit, ?3 how far ahead of the time to look, in ms
SELECT o.signer
FROM (
    SELECT signer, held_until
    FROM signer_nonce_allocation
    WHERE status = 'HELD' AND held_until <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 + ?3 * 1000
    ORDER BY held_until
    LIMIT 10000
) AS o
LEFT JOIN lease l ON l.resource = 'signer:' || o.signer AND l.owner <> ?1 AND l.expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
WHERE l.resource IS NULL
GROUP BY o.signer
ORDER BY min(o.held_until)
LIMIT ?2
