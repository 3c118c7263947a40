-- Ends the signer's lease and raises its token: whoever owns it begins anew. Waits for the owner's last commit.
-- $1 resource
UPDATE lease SET fencing_token = fencing_token + 1, owner = NULL, expires_at = now()
WHERE resource = $1
RETURNING fencing_token
