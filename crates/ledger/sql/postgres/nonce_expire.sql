-- Holds that ran out, if the database agrees that they did, or would have so much later.
-- $1 signers, $2 nonces, $3 holds, $4 how much later, in ms, $5 to, $6 tokens, $7 owners
UPDATE signer_nonce_allocation a
SET status        = w.to_status,
    fencing_token = w.fencing_token,
    owner         = w.owner,
    updated_at    = now()
FROM (
    SELECT unnest($1::text[]) AS signer, unnest($2::bigint[]) AS nonce, unnest($3::uuid[]) AS hold,
           unnest($4::bigint[]) AS early_ms, unnest($5::text[]) AS to_status, unnest($6::bigint[]) AS fencing_token,
           unnest($7::text[]) AS owner
) AS w
WHERE a.signer = w.signer AND a.nonce = w.nonce AND a.status = 'HELD' AND a.hold = w.hold
  AND a.held_until <= now() + w.early_ms * interval '1 millisecond'
