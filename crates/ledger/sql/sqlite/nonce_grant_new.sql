-- Nonces granted for the first time. The caller counts: a row that was there already is a divergence.
-- ?1 JSON array of {signer, nonce, hold, hold_ms, token, owner}, ?2 the transaction's time
INSERT INTO signer_nonce_allocation
    (signer, nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at)
SELECT w.value ->> 'signer', w.value ->> 'nonce', 'HELD', w.value ->> 'hold',
       ?2 + (w.value ->> 'hold_ms') * 1000, NULL, w.value ->> 'token',
       w.value ->> 'owner', ?2, ?2
FROM json_each(?1) AS w
WHERE TRUE
ON CONFLICT DO NOTHING
