-- $1 signer, $2 limit
SELECT nonce, hold
FROM signer_nonce_allocation
WHERE signer = $1 AND status IN ('RELEASED', 'QUARANTINED') AND status = 'RELEASED'
ORDER BY nonce
LIMIT $2
