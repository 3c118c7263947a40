-- Ends the signer's lease and raises its token, so that its owner begins anew; makes one that is free if there is none,
-- so that no owner acquires it meanwhile. Waits for the owner's last commit.
-- $1 resource
INSERT INTO lease AS l (resource, owner, fencing_token, acquired_at, renewed_at, expires_at)
SELECT $1, NULL, token_floor + 1, now(), now(), now()
FROM ledger_recovery
ON CONFLICT (resource) DO UPDATE
SET fencing_token = l.fencing_token + 1, owner = NULL, expires_at = excluded.expires_at
RETURNING fencing_token
