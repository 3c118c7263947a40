-- ?1 signer, ?2 JSON array of nonces
SELECT nonce, status, hold, updated_at, held_until, tx_hash
FROM signer_nonce_allocation
WHERE signer = ?1 AND nonce IN (SELECT value FROM json_each(?2))
