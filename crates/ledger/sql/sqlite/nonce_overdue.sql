-- Longest overdue first. nonce_holes says why the index is named.
-- ?1 signer, ?2 limit
SELECT nonce, hold
FROM signer_nonce_allocation INDEXED BY signer_nonce_held
WHERE signer = ?1 AND status = 'HELD' AND held_until <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
ORDER BY held_until
LIMIT ?2
