-- How many jobs the rest has, as far as they are counted.
-- $1 so many at most
SELECT count(*) FROM (SELECT FROM job_finished_rest LIMIT $1) AS counted
