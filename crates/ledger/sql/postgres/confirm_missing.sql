-- Nonces that the ledger has no row of: CONSUMED if the chain has them and the ledger has lost them, RELEASED if the chain has
-- none of them and they lie below the signer's first nonce.
-- $1 signer, $2 from, $3 up to and without, $4 status, $5 hold, $6 token
INSERT INTO signer_nonce_allocation
    (signer, nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at)
SELECT $1, nonce, $4, $5, now(), NULL, $6, 'recover', now(), now()
FROM generate_series($2, $3 - 1) AS nonce
