-- Which bus an instance uses; NULL where it has not said so. Instances on different ones cannot give each other jobs.
ALTER TABLE instance ADD COLUMN bus text;
