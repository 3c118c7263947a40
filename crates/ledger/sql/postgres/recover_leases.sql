-- Ends every lease, and raises its token past those that were given since.
-- $1 by how much
UPDATE lease SET fencing_token = fencing_token + $1, owner = NULL, expires_at = now()
