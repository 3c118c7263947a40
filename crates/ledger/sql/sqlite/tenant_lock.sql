-- Takes tenants' locks that are free, ran out, or are the task's own, each one token on, a first one from the floor; answers
-- those taken.
-- ?1 JSON array of {resource, owner}, ?2 length in ms, ?3 the transaction's time
INSERT INTO lease (resource, owner, fencing_token, acquired_at, renewed_at, expires_at)
SELECT w.value ->> 'resource', w.value ->> 'owner', (SELECT token_floor FROM ledger_recovery) + 1, ?3, ?3, ?3 + ?2 * 1000
FROM json_each(?1) AS w
WHERE TRUE
ON CONFLICT (resource)
DO UPDATE SET owner = excluded.owner, fencing_token = lease.fencing_token + 1, acquired_at = excluded.acquired_at,
              renewed_at = excluded.renewed_at, expires_at = excluded.expires_at
WHERE lease.owner IS NULL OR lease.owner = excluded.owner OR lease.expires_at <= ?3
RETURNING resource, fencing_token
