-- The attempts that a node has.
-- $1 node
SELECT id, attempt FROM job WHERE node = $1 ORDER BY id
