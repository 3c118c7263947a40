-- Holes granted again. The caller counts: a row that is no longer that hole is a divergence.
-- $1 signers, $2 nonces, $3 holds, $4 lengths in ms, $5 tokens, $6 owners, $7 last holds
UPDATE signer_nonce_allocation a
SET status        = 'HELD',
    hold          = w.hold,
    held_until    = now() + w.hold_ms * interval '1 millisecond',
    fencing_token = w.fencing_token,
    owner         = w.owner,
    updated_at    = now()
FROM unnest($1::text[], $2::bigint[], $3::uuid[], $4::bigint[], $5::bigint[], $6::text[], $7::uuid[])
     AS w (signer, nonce, hold, hold_ms, fencing_token, owner, last_hold)
WHERE a.signer = w.signer AND a.nonce = w.nonce AND a.status = 'RELEASED' AND a.hold = w.last_hold
