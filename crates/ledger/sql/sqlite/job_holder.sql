-- Notes which instance holds the node that has these attempts, where their rows name another one.
-- ?1 node, ?2 the instance, ?3 JSON array of {id, attempt}
UPDATE job AS j
SET holder = ?2
FROM json_each(?3) AS w
WHERE j.id = w.value ->> 'id' AND j.attempt = w.value ->> 'attempt' AND j.node = ?1 AND j.holder <> ?2
