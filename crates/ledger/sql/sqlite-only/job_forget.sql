-- Takes jobs from the unfinished ones that job_finish has copied: SQLite has no statement for both.
-- ?1 JSON array of ids
DELETE FROM job WHERE id IN (SELECT value FROM json_each(?1))
