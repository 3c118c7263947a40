-- Holds that ran out, if the database agrees that they did, or would have so much later.
-- ?1 JSON array of {signer, nonce, hold, early, to, token, owner}, ?2 the transaction's time
UPDATE signer_nonce_allocation AS a
SET status        = w.value ->> 'to',
    fencing_token = w.value ->> 'token',
    owner         = w.value ->> 'owner',
    updated_at    = ?2
FROM json_each(?1) AS w
WHERE a.signer = w.value ->> 'signer' AND a.nonce = w.value ->> 'nonce'
  AND a.status = 'HELD' AND a.hold = w.value ->> 'hold'
  AND a.held_until <= ?2 + (w.value ->> 'early') * 1000
