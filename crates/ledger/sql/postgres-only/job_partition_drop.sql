-- The capitals stand for the day's number.
DROP TABLE job_finished_DAY
