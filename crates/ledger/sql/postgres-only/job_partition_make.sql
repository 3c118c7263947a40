-- A day's partition. The capitals stand for the day's number, its first id, and the first id of the day after it.
CREATE TABLE IF NOT EXISTS job_finished_DAY PARTITION OF job_finished FOR VALUES FROM ('FIRST') TO ('NEXT')
