-- A new signer waits for its next nonce if a recovery says so of those without a row: a policy is no confirmation.
-- $1 signers, $2 first nonces, $3 hold_ms or NULL, $4 on_expiry, $5 max_in_flight or NULL, $6 shared_keys, $7 tokens
INSERT INTO signer (signer, first_nonce, hold_ms, on_expiry, max_in_flight, shared_keys, fencing_token, recovering,
                    created_at, updated_at)
SELECT w.signer, w.first_nonce, w.hold_ms, w.on_expiry, w.max_in_flight, w.shared_keys, w.fencing_token,
       (SELECT unknown_signers_wait FROM ledger_recovery), now(), now()
FROM (
    SELECT unnest($1::text[]) AS signer, unnest($2::bigint[]) AS first_nonce, unnest($3::bigint[]) AS hold_ms,
           unnest($4::text[]) AS on_expiry, unnest($5::bigint[]) AS max_in_flight, unnest($6::boolean[]) AS shared_keys,
           unnest($7::bigint[]) AS fencing_token
) AS w
ORDER BY w.signer COLLATE "C"
ON CONFLICT (signer) DO UPDATE
SET first_nonce   = excluded.first_nonce,
    hold_ms       = excluded.hold_ms,
    on_expiry     = excluded.on_expiry,
    max_in_flight = excluded.max_in_flight,
    shared_keys   = excluded.shared_keys,
    fencing_token = excluded.fencing_token,
    updated_at    = now()
