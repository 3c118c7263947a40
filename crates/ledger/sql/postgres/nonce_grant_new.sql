-- Nonces granted for the first time. The caller counts: a row that was there already is a divergence.
-- $1 signers, $2 nonces, $3 holds, $4 lengths in ms, $5 tokens, $6 owners
INSERT INTO signer_nonce_allocation
    (signer, nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at)
SELECT w.signer, w.nonce, 'HELD', w.hold, now() + w.hold_ms * interval '1 millisecond', NULL,
       w.fencing_token, w.owner, now(), now()
FROM (
    SELECT unnest($1::text[]) AS signer, unnest($2::bigint[]) AS nonce, unnest($3::uuid[]) AS hold,
           unnest($4::bigint[]) AS hold_ms, unnest($5::bigint[]) AS fencing_token, unnest($6::text[]) AS owner
) AS w
ORDER BY w.signer COLLATE "C", w.nonce
ON CONFLICT DO NOTHING
