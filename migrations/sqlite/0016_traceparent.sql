-- The span that a job continues, as the W3C's header writes it: 55 characters. NULL for none.
ALTER TABLE job ADD COLUMN traceparent TEXT;
ALTER TABLE job_finished ADD COLUMN traceparent TEXT;
