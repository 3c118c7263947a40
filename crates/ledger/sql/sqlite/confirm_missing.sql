-- Nonces that the ledger has no row of: CONSUMED if the chain has them and the ledger has lost them, RELEASED if the chain has
-- none of them and they lie below the signer's first nonce.
-- ?1 signer, ?2 from, ?3 up to and without, ?4 status, ?5 hold, ?6 token, ?7 the transaction's time
INSERT INTO signer_nonce_allocation
    (signer, nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at)
WITH RECURSIVE missing (nonce) AS (
    SELECT ?2 WHERE ?2 < ?3
    UNION ALL
    SELECT nonce + 1 FROM missing WHERE nonce + 1 < ?3
)
SELECT ?1, nonce, ?4, ?5, ?7, NULL, ?6, 'recover', ?7, ?7 FROM missing
