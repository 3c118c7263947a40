-- The signer grants again. Without any nonce its first one is the confirmed one.
-- $1 signer, $2 first nonce
UPDATE signer SET recovering = false, first_nonce = $2, updated_at = now() WHERE signer = $1
