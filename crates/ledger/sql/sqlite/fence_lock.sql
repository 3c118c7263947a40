-- The fence. The transaction began as a writer (BEGIN IMMEDIATE), so nothing can change between this
-- look and its commit.
-- ?1 JSON array of {resource, token, owner}, ?2 the transaction's time
SELECT lease.resource, ?2 AS at
FROM lease
JOIN json_each(?1) AS w
  ON lease.resource = w.value ->> 'resource' AND lease.fencing_token = w.value ->> 'token'
WHERE lease.owner = w.value ->> 'owner'
ORDER BY lease.resource
