-- $1 signer, $2 after this nonce (-1 for the start), $3 status or NULL, $4 limit
SELECT nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at
FROM signer_nonce_allocation
WHERE signer = $1 AND nonce > $2 AND (CAST($3 AS text) IS NULL OR status = $3)
ORDER BY nonce
LIMIT $4
