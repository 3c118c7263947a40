-- $1 age in ms
DELETE FROM bulk WHERE finished_at < now() - $1 * interval '1 millisecond'
