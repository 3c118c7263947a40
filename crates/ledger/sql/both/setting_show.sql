-- $1 name
SELECT version, value FROM setting WHERE name = $1
