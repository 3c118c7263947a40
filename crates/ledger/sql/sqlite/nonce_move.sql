-- Settlements and resolutions: the same hold, another state.
-- ?1 JSON array of {signer, nonce, hold, from, to, tx_hash, token, owner}, ?2 the transaction's time
UPDATE signer_nonce_allocation AS a
SET status        = w.value ->> 'to',
    tx_hash       = w.value ->> 'tx_hash',
    fencing_token = w.value ->> 'token',
    owner         = w.value ->> 'owner',
    updated_at    = ?2
FROM json_each(?1) AS w
WHERE a.signer = w.value ->> 'signer' AND a.nonce = w.value ->> 'nonce'
  AND a.status = w.value ->> 'from' AND a.hold = w.value ->> 'hold'
