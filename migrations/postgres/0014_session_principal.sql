-- Which token opened a session; NULL without tokens. Its open sessions are counted when it opens one more.
ALTER TABLE session ADD COLUMN principal text COLLATE "C";
CREATE INDEX session_open_of ON session (principal) WHERE closed_at IS NULL AND principal IS NOT NULL;
