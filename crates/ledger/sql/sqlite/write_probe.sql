-- Writes a row that takes room on the disk. Committed, since SQLite writes nothing before.
-- ?1 name, ?2 bytes
INSERT INTO setting (name, version, value, updated_at)
VALUES (?1, 1, hex(randomblob(?2 / 2)), 0)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
