-- A session takes no more jobs. One that is closed already stays as it is.
-- ?1 session, ?2 the transaction's time
UPDATE session SET closed_at = ?2 WHERE session = ?1 AND closed_at IS NULL
