-- Ends what earlier processes left leased. Whoever runs this has the file's lock, so they are dead.
UPDATE lease
SET owner = NULL, expires_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
WHERE owner IS NOT NULL
