-- $1 sequence
SELECT sequence, start, next, increment,
       (extract(epoch FROM created_at) * 1000000)::bigint AS created_at,
       (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at
FROM id_sequence
WHERE sequence = $1
