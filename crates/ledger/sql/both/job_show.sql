-- $1 id
SELECT * FROM job WHERE id = $1
