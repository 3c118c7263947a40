-- Ends the signer's lease and raises its token, so that its owner begins anew; makes one that is free if there is none.
-- ?1 resource, ?2 the transaction's time
INSERT INTO lease (resource, owner, fencing_token, acquired_at, renewed_at, expires_at)
SELECT ?1, NULL, token_floor + 1, ?2, ?2, ?2
FROM ledger_recovery
WHERE TRUE
ON CONFLICT (resource) DO UPDATE
SET fencing_token = lease.fencing_token + 1, owner = NULL, expires_at = excluded.expires_at
RETURNING fencing_token
