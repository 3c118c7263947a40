-- The signer grants again. Without any nonce its first one is the confirmed one.
-- ?1 signer, ?2 first nonce, ?3 the confirmed nonce, ?4 the transaction's time
UPDATE signer SET recovering = 0, confirmed_nonce = ?3, first_nonce = ?2, updated_at = ?4 WHERE signer = ?1
