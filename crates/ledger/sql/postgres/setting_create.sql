-- The first version; nothing where there is one.
-- $1 name, $2 value
INSERT INTO setting (name, version, value, updated_at)
VALUES ($1, 1, $2, now())
ON CONFLICT DO NOTHING
RETURNING ARRAY[nullif(current_setting('fencepost.timeline', true), '')::bigint, pg_current_xact_id()::text::bigint,
                CASE WHEN current_setting('fencepost.timeline', true) <> ''
                     THEN pg_current_wal_insert_lsn() - '0/0' END]::bigint[] AS mark
