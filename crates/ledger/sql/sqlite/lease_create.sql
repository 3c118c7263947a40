-- The first acquisition of a resource. Nothing happens where a row is already there.
-- ?1 resource, ?2 owner, ?3 length in ms
INSERT INTO lease (resource, owner, fencing_token, acquired_at, renewed_at, expires_at)
VALUES (?1, ?2, 1, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 + ?3 * 1000)
ON CONFLICT DO NOTHING
RETURNING fencing_token, expires_at
