-- The signer grants again; one without a row gets it. Its nonces begin at the confirmed one where it has none, or
-- only higher ones.
-- $1 signer, $2 first nonce, $3 the confirmed nonce, $4 on_expiry of a signer without a row, $5 token
INSERT INTO signer (signer, first_nonce, on_expiry, fencing_token, recovering, confirmed_nonce, created_at, updated_at)
VALUES ($1, $2, $4, $5, false, $3, now(), now())
ON CONFLICT (signer) DO UPDATE
SET recovering = false, confirmed_nonce = excluded.confirmed_nonce, first_nonce = excluded.first_nonce,
    updated_at = excluded.updated_at
