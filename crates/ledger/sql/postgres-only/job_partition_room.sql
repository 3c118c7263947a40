-- Whether the rest has a job of a day: then that day gets no partition. The capitals stand for the day's first id, and the first id
-- of the day after it.
SELECT EXISTS (SELECT FROM job_finished_rest WHERE id >= 'FIRST' AND id < 'NEXT')
