-- Settlements and resolutions: the same hold, another state.
-- $1 signers, $2 nonces, $3 holds, $4 from, $5 to, $6 transactions or NULL, $7 tokens, $8 owners
UPDATE signer_nonce_allocation a
SET status        = w.to_status,
    tx_hash       = w.tx_hash,
    fencing_token = w.fencing_token,
    owner         = w.owner,
    updated_at    = now()
FROM (
    SELECT unnest($1::text[]) AS signer, unnest($2::bigint[]) AS nonce, unnest($3::uuid[]) AS hold,
           unnest($4::text[]) AS from_status, unnest($5::text[]) AS to_status, unnest($6::text[]) AS tx_hash,
           unnest($7::bigint[]) AS fencing_token, unnest($8::text[]) AS owner
) AS w
WHERE a.signer = w.signer AND a.nonce = w.nonce AND a.status = w.from_status AND a.hold = w.hold
