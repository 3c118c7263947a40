-- Nonces that the chain has and the ledger has lost are CONSUMED.
-- ?1 signer, ?2 from, ?3 up to and without, ?4 hold, ?5 token, ?6 the transaction's time
INSERT INTO signer_nonce_allocation
    (signer, nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at)
WITH RECURSIVE missing (nonce) AS (
    SELECT ?2 WHERE ?2 < ?3
    UNION ALL
    SELECT nonce + 1 FROM missing WHERE nonce + 1 < ?3
)
SELECT ?1, nonce, 'CONSUMED', ?4, ?6, NULL, ?5, 'recover', ?6, ?6 FROM missing
