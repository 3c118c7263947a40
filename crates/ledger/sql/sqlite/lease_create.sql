-- The first acquisition of a resource. Nothing happens where a row is already there.
-- Its token is one above the floor, which a recovery has raised: a restored ledger may lack the row of a name that was leased.
-- The ids of plans and sessions are used once, and an owner that has the token 1 knows that there was none before.
-- ?1 resource, ?2 owner, ?3 length in ms
INSERT INTO lease (resource, owner, fencing_token, acquired_at, renewed_at, expires_at)
SELECT ?1, ?2, CASE WHEN ?1 LIKE 'plan:%' OR ?1 LIKE 'session:%' THEN 1 ELSE token_floor + 1 END,
       {now}, {now},
       {now} + ?3 * 1000
FROM ledger_recovery
WHERE TRUE
ON CONFLICT DO NOTHING
RETURNING fencing_token, expires_at
