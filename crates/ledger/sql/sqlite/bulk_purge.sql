-- ?1 age in ms
DELETE FROM bulk WHERE finished_at < CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - ?1 * 1000
