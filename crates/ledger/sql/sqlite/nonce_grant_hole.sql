-- Holes granted again. The caller counts: a row that is not that hole any more is a divergence.
-- ?1 JSON array of {signer, nonce, hold, hold_ms, token, last_hold, owner}, ?2 the transaction's time
UPDATE signer_nonce_allocation AS a
SET status        = 'HELD',
    hold          = w.value ->> 'hold',
    held_until    = ?2 + (w.value ->> 'hold_ms') * 1000,
    fencing_token = w.value ->> 'token',
    owner         = w.value ->> 'owner',
    updated_at    = ?2
FROM json_each(?1) AS w
WHERE a.signer = w.value ->> 'signer' AND a.nonce = w.value ->> 'nonce'
  AND a.status = 'RELEASED' AND a.hold = w.value ->> 'last_hold'
