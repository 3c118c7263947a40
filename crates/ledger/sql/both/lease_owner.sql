-- $1 resource
SELECT owner
FROM lease
WHERE resource = $1
