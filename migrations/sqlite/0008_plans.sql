-- The same tables as on PostgreSQL. Times are whole microseconds since 1970; ids are UUIDs as text.
CREATE TABLE plan (
    id          TEXT NOT NULL PRIMARY KEY,                  -- version 7: in the order of their making
    status      TEXT NOT NULL
                CHECK (status IN ('CREATED', 'RUNNING', 'PAUSED', 'ATTENTION', 'SUCCEEDED', 'CANCELLED')),
    version     INTEGER NOT NULL CHECK (version > 0),        -- raised by every write
    needs_owner INTEGER NOT NULL,                           -- something of it runs, or may begin
    document    TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    finished_at INTEGER                                 -- NULL unless nothing follows but a retry
) STRICT;
CREATE INDEX plan_status ON plan (status, id);
CREATE INDEX plan_busy ON plan (id) WHERE needs_owner;
CREATE INDEX plan_age ON plan (finished_at) WHERE finished_at IS NOT NULL;

-- One row per task, as it is in its newest run.
CREATE TABLE plan_task (
    id         TEXT NOT NULL PRIMARY KEY,
    plan       TEXT NOT NULL REFERENCES plan ON DELETE CASCADE,
    place      INTEGER NOT NULL CHECK (place >= 0),          -- in the plan
    tenant     TEXT NOT NULL,
    status     TEXT NOT NULL
               CHECK (status IN ('PENDING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'PAUSED', 'INTERRUPTED', 'CANCELLED')),
    run        INTEGER NOT NULL CHECK (run > 0),
    definition INTEGER NOT NULL CHECK (definition > 0),
    version    INTEGER NOT NULL CHECK (version > 0),         -- raised by every write
    document   TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    CONSTRAINT plan_task_place UNIQUE (plan, place)
) STRICT;
CREATE INDEX plan_task_tenant ON plan_task (tenant, id);

-- What a task's stages are. Never changed: a corrected definition is the next version.
CREATE TABLE plan_definition (
    task       TEXT NOT NULL REFERENCES plan_task ON DELETE CASCADE,
    version    INTEGER NOT NULL CHECK (version > 0),
    stages     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (task, version)
) STRICT;

-- Each stage of each run, from its beginning.
CREATE TABLE plan_stage_run (
    task       TEXT NOT NULL REFERENCES plan_task ON DELETE CASCADE,
    run        INTEGER NOT NULL,
    stage      INTEGER NOT NULL CHECK (stage >= 0),
    status     TEXT NOT NULL
               CHECK (status IN ('PENDING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'SKIPPED', 'UNKNOWN')),
    job        TEXT,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (task, run, stage)
) STRICT;

-- What finished stages left. Never changed.
CREATE TABLE plan_checkpoint (
    task      TEXT NOT NULL REFERENCES plan_task ON DELETE CASCADE,
    version   INTEGER NOT NULL CHECK (version > 0),
    run       INTEGER NOT NULL,
    completed INTEGER NOT NULL CHECK (completed > 0),
    context   TEXT NOT NULL,
    saved_at  INTEGER NOT NULL,
    PRIMARY KEY (task, version)
) STRICT;

-- What happened, in order. Never changed.
CREATE TABLE plan_event (
    plan     TEXT NOT NULL REFERENCES plan ON DELETE CASCADE,
    seq      INTEGER NOT NULL,
    task     TEXT,
    document TEXT NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (plan, seq)
) STRICT;
CREATE INDEX plan_event_task ON plan_event (task, seq) WHERE task IS NOT NULL;

-- What the node of a stage is told of its plan: JSON, never looked into. NULL for a job that is no stage.
ALTER TABLE job ADD COLUMN stage TEXT;
ALTER TABLE job_finished ADD COLUMN stage TEXT;
