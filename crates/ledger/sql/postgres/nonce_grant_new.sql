-- Nonces granted for the first time. The caller counts: a row that was there already is a divergence.
-- $1 signers, $2 nonces, $3 holds, $4 lengths in ms, $5 tokens, $6 owners
INSERT INTO signer_nonce_allocation
    (signer, nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at)
SELECT w.signer, w.nonce, 'HELD', w.hold, now() + w.hold_ms * interval '1 millisecond', NULL,
       w.fencing_token, w.owner, now(), now()
FROM unnest($1::text[], $2::bigint[], $3::uuid[], $4::bigint[], $5::bigint[], $6::text[])
     AS w (signer, nonce, hold, hold_ms, fencing_token, owner)
ORDER BY w.signer COLLATE "C", w.nonce
ON CONFLICT DO NOTHING
