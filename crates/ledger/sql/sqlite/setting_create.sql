-- The first version; nothing where there is one.
-- ?1 name, ?2 value
INSERT INTO setting (name, version, value, updated_at)
VALUES (?1, 1, ?2, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
ON CONFLICT DO NOTHING
