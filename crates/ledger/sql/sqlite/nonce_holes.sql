-- The index is named because SQLite, without statistics, would take the primary key and read every nonce
-- that the signer ever had.
-- ?1 signer, ?2 limit
SELECT nonce, hold
FROM signer_nonce_allocation INDEXED BY signer_nonce_hole
WHERE signer = ?1 AND status IN ('RELEASED', 'QUARANTINED') AND status = 'RELEASED'
ORDER BY nonce
LIMIT ?2
