-- When finished jobs of the session were forgotten last (deleted, or purged): it counts as used since. NULL if none was.
ALTER TABLE session ADD COLUMN forgotten_at INTEGER;
