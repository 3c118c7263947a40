-- Nonces that the chain has and the ledger has lost are CONSUMED.
-- $1 signer, $2 from, $3 up to and without, $4 hold, $5 token
INSERT INTO signer_nonce_allocation
    (signer, nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at)
SELECT $1, nonce, 'CONSUMED', $4, now(), NULL, $5, 'recover', now(), now()
FROM generate_series($2, $3 - 1) AS nonce
