-- A new signer waits for its next nonce if a recovery says so of those without a row: a policy is no confirmation.
-- ?1 JSON array of {signer, first_nonce, hold_ms or null, on_expiry, max_in_flight or null, shared_keys, token},
-- ?2 the transaction's time
INSERT INTO signer (signer, first_nonce, hold_ms, on_expiry, max_in_flight, shared_keys, fencing_token, recovering,
                    created_at, updated_at)
SELECT w.value ->> 'signer', w.value ->> 'first_nonce', w.value ->> 'hold_ms', w.value ->> 'on_expiry',
       w.value ->> 'max_in_flight', w.value ->> 'shared_keys', w.value ->> 'token',
       (SELECT unknown_signers_wait FROM ledger_recovery), ?2, ?2
FROM json_each(?1) AS w
WHERE TRUE
ON CONFLICT (signer) DO UPDATE
SET first_nonce   = excluded.first_nonce,
    hold_ms       = excluded.hold_ms,
    on_expiry     = excluded.on_expiry,
    max_in_flight = excluded.max_in_flight,
    shared_keys   = excluded.shared_keys,
    fencing_token = excluded.fencing_token,
    updated_at    = excluded.updated_at
