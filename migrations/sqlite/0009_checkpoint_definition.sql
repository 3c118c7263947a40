-- Which definition of its task a checkpoint was written under; before, every definition kept the stages that it covers.
ALTER TABLE plan_checkpoint ADD COLUMN definition INTEGER NOT NULL DEFAULT 1;
