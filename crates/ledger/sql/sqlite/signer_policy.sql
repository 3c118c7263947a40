-- ?1 signer, ?2 first nonce, ?3 hold_ms or NULL, ?4 on_expiry, ?5 max_in_flight or NULL, ?6 token,
-- ?7 the transaction's time
INSERT INTO signer (signer, first_nonce, hold_ms, on_expiry, max_in_flight, fencing_token, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)
ON CONFLICT (signer) DO UPDATE
SET first_nonce   = excluded.first_nonce,
    hold_ms       = excluded.hold_ms,
    on_expiry     = excluded.on_expiry,
    max_in_flight = excluded.max_in_flight,
    fencing_token = excluded.fencing_token,
    updated_at    = excluded.updated_at
