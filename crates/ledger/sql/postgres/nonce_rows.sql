-- $1 signer, $2 nonces
SELECT nonce, status, hold, updated_at, held_until, tx_hash
FROM signer_nonce_allocation
WHERE signer = $1 AND nonce = ANY ($2::bigint[])
