-- On whose behalf a session is; NULL where nobody said.
ALTER TABLE session ADD COLUMN tenant text;
