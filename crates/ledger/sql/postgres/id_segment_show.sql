-- $1 tag
SELECT tag, start, next, step, description,
       (extract(epoch FROM created_at) * 1000000)::bigint AS created_at,
       (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at
FROM id_segment
WHERE tag = $1
