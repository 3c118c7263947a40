-- A new plan; answers its time.
-- ?1 id, ?2 status, ?3 whether it needs an owner, ?4 document, ?5 the transaction's time
INSERT INTO plan (id, status, version, needs_owner, document, created_at, finished_at)
VALUES (?1, ?2, 1, ?3, ?4, ?5, NULL)
RETURNING created_at
