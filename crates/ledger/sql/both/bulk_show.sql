-- $1 id
SELECT {bulk}
FROM bulk
WHERE id = $1
