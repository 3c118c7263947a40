-- The jobs of stages that are under way or UNKNOWN: the purge of finished jobs leaves them alone.
CREATE INDEX plan_stage_run_awaited ON plan_stage_run (job) WHERE status IN ('RUNNING', 'UNKNOWN');
