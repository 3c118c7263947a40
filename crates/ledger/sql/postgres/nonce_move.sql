-- Settlements and resolutions: the same hold, another state.
-- $1 signers, $2 nonces, $3 holds, $4 from, $5 to, $6 transactions or NULL, $7 tokens, $8 owners
UPDATE signer_nonce_allocation a
SET status        = w.to_status,
    tx_hash       = w.tx_hash,
    fencing_token = w.fencing_token,
    owner         = w.owner,
    updated_at    = now()
FROM unnest($1::text[], $2::bigint[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[])
     AS w (signer, nonce, hold, from_status, to_status, tx_hash, fencing_token, owner)
WHERE a.signer = w.signer AND a.nonce = w.nonce AND a.status = w.from_status AND a.hold = w.hold
