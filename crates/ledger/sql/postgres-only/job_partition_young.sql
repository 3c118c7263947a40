-- Whether a job of that day finished lately. The capitals stand for the day's number.
-- $1 age in ms
SELECT EXISTS (SELECT FROM job_finished_DAY WHERE finished_at >= now() - $1 * interval '1 millisecond')
