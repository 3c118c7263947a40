-- Holes granted again. The caller counts: a row that is not that hole any more is a divergence.
-- $1 signers, $2 nonces, $3 holds, $4 lengths in ms, $5 tokens, $6 owners, $7 last holds
UPDATE signer_nonce_allocation a
SET status        = 'HELD',
    hold          = w.hold,
    held_until    = now() + w.hold_ms * interval '1 millisecond',
    fencing_token = w.fencing_token,
    owner         = w.owner,
    updated_at    = now()
FROM (
    SELECT unnest($1::text[]) AS signer, unnest($2::bigint[]) AS nonce, unnest($3::uuid[]) AS hold,
           unnest($4::bigint[]) AS hold_ms, unnest($5::bigint[]) AS fencing_token, unnest($6::text[]) AS owner,
           unnest($7::uuid[]) AS last_hold
) AS w
WHERE a.signer = w.signer AND a.nonce = w.nonce AND a.status = 'RELEASED' AND a.hold = w.last_hold
