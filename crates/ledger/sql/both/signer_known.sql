-- Whether a nonce was granted to the signer, or a policy set for it: 1, else 0. Reads no nonce.
-- $1 signer
SELECT count(*) FROM signer WHERE signer = $1
