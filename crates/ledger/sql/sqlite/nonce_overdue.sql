-- ?1 signer, ?2 limit
SELECT nonce, hold
FROM signer_nonce_allocation
WHERE signer = ?1 AND status <> 'CONSUMED' AND status = 'HELD' AND held_until <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
ORDER BY nonce
LIMIT ?2
