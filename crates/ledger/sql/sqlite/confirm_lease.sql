-- Ends the signer's lease and raises its token: whoever owns it begins anew.
-- ?1 resource
UPDATE lease
SET fencing_token = fencing_token + 1, owner = NULL,
    expires_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
WHERE resource = ?1
RETURNING fencing_token
