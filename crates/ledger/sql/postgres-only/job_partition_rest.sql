-- How many bytes the server reads to know that the rest has no job of a new partition.
SELECT pg_relation_size('job_finished_rest')
