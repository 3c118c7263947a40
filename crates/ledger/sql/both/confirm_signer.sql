-- The signer as it stands while its next nonce is confirmed; NULL for a signer without a nonce.
-- $1 signer
SELECT recovering, confirmed_nonce, first_nonce,
       (SELECT max(nonce) FROM signer_nonce_allocation WHERE signer = $1) AS last_nonce
FROM signer
WHERE signer = $1
