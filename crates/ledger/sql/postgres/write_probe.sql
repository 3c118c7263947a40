-- Inserts a row that takes room on the disk and cannot be compressed much. Rolled back by its caller.
-- $1 name, $2 bytes
INSERT INTO setting (name, version, value, updated_at)
SELECT $1, 1, string_agg(md5(random()::text), ''), now() FROM generate_series(1, $2::bigint / 32)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
