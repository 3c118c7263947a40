-- The first version; nothing where there is one.
-- ?1 name, ?2 value
INSERT INTO setting (name, version, value, updated_at)
VALUES (?1, 1, ?2, {now})
ON CONFLICT DO NOTHING
