-- The first acquisition of a resource. Nothing happens where a row is already there.
-- $1 resource, $2 owner, $3 length in ms
INSERT INTO lease (resource, owner, fencing_token, acquired_at, renewed_at, expires_at)
VALUES ($1, $2, 1, clock_timestamp(), clock_timestamp(), clock_timestamp() + $3 * interval '1 millisecond')
ON CONFLICT DO NOTHING
RETURNING fencing_token, expires_at
