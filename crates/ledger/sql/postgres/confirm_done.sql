-- The signer grants again. Without any nonce its first one is the confirmed one.
-- $1 signer, $2 first nonce, $3 the confirmed nonce
UPDATE signer SET recovering = false, confirmed_nonce = $3, first_nonce = $2, updated_at = now() WHERE signer = $1
