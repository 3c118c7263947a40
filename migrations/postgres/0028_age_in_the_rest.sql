-- Old jobs that no day's partition took are found by their age. Newer jobs lie where older ones were deleted, and what
-- job_finished_age keeps of a range of pages stays as wide as it has ever been: by it nearly all pages would be read.
CREATE INDEX job_finished_rest_age ON job_finished_rest (finished_at);
