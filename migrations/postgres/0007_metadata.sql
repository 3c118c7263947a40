-- What the client notes on a job: strings by their keys, as a JSON object, never looked into. NULL for none.
ALTER TABLE job ADD COLUMN metadata text;
ALTER TABLE job_finished ADD COLUMN metadata text;
