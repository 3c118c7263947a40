-- A session takes no more jobs. One that is closed already stays as it is.
-- $1 session
UPDATE session SET closed_at = now() WHERE session = $1 AND closed_at IS NULL
