-- Holds that ran out, if the database agrees that they did.
-- $1 signers, $2 nonces, $3 holds, $4 to, $5 tokens, $6 owners
UPDATE signer_nonce_allocation a
SET status        = w.to_status,
    fencing_token = w.fencing_token,
    owner         = w.owner,
    updated_at    = now()
FROM unnest($1::text[], $2::bigint[], $3::uuid[], $4::text[], $5::bigint[], $6::text[])
     AS w (signer, nonce, hold, to_status, fencing_token, owner)
WHERE a.signer = w.signer AND a.nonce = w.nonce AND a.status = 'HELD' AND a.hold = w.hold
  AND a.held_until <= now()
