-- $1 id
SELECT url FROM instance WHERE instance_id = $1
