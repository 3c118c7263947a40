-- Whether this request noted the same before: the instance that passed it on has.
-- $1 subject, $2 action, $3 principal, $4 request id
SELECT id FROM audit WHERE subject = $1 AND action = $2 AND principal = $3 AND request_id = $4 LIMIT 1
