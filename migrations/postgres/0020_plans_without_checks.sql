-- A row of a plan's history was looked up in the plan's row, or the task's, as it was written: a statement for each, which
-- cost more than the row. Only the plan's owner writes them, in the transaction that changes these rows. With a plan or a
-- task still goes what belongs to it, whichever release deletes it, and whatever its role may delete by itself.
LOCK TABLE plan, plan_task, plan_stage_run, plan_checkpoint, plan_event IN ACCESS EXCLUSIVE MODE;
ALTER TABLE plan_event DROP CONSTRAINT plan_event_plan_fkey;
ALTER TABLE plan_checkpoint DROP CONSTRAINT plan_checkpoint_task_fkey;
ALTER TABLE plan_stage_run DROP CONSTRAINT plan_stage_run_task_fkey;

CREATE FUNCTION plan_gone() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM plan_event e USING gone g WHERE e.plan = g.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER plan_gone AFTER DELETE ON plan REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION plan_gone();

CREATE FUNCTION plan_task_gone() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM plan_checkpoint c USING gone g WHERE c.task = g.id;
    DELETE FROM plan_stage_run r USING gone g WHERE r.task = g.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER plan_task_gone AFTER DELETE ON plan_task REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION plan_task_gone();
