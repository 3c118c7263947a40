-- Plans. A document is JSON that only its owner reads; what others look for is a column.
CREATE TABLE plan (
    id          uuid NOT NULL PRIMARY KEY,                  -- version 7: in the order of their making
    status      text COLLATE "C" NOT NULL
                CHECK (status IN ('CREATED', 'RUNNING', 'PAUSED', 'ATTENTION', 'SUCCEEDED', 'CANCELLED')),
    version     bigint NOT NULL CHECK (version > 0),        -- raised by every write
    needs_owner boolean NOT NULL,                           -- something of it runs, or may begin
    document    text NOT NULL,
    created_at  timestamptz NOT NULL,
    finished_at timestamptz                                 -- NULL unless nothing follows but a retry
);
CREATE INDEX plan_status ON plan (status, id);
CREATE INDEX plan_busy ON plan (id) WHERE needs_owner;
CREATE INDEX plan_age ON plan (finished_at) WHERE finished_at IS NOT NULL;

-- One row per task, as it is in its newest run.
CREATE TABLE plan_task (
    id         uuid NOT NULL PRIMARY KEY,
    plan       uuid NOT NULL REFERENCES plan ON DELETE CASCADE,
    place      bigint NOT NULL CHECK (place >= 0),          -- in the plan
    tenant     text COLLATE "C" NOT NULL,
    status     text COLLATE "C" NOT NULL
               CHECK (status IN ('PENDING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'PAUSED', 'INTERRUPTED', 'CANCELLED')),
    run        bigint NOT NULL CHECK (run > 0),
    definition bigint NOT NULL CHECK (definition > 0),
    version    bigint NOT NULL CHECK (version > 0),         -- raised by every write
    document   text NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT plan_task_place UNIQUE (plan, place)
);
CREATE INDEX plan_task_tenant ON plan_task (tenant, id);

-- What a task's stages are. Never changed: a corrected definition is the next version.
CREATE TABLE plan_definition (
    task       uuid NOT NULL REFERENCES plan_task ON DELETE CASCADE,
    version    bigint NOT NULL CHECK (version > 0),
    stages     text NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (task, version)
);

-- Each stage of each run, from its beginning.
CREATE TABLE plan_stage_run (
    task       uuid NOT NULL REFERENCES plan_task ON DELETE CASCADE,
    run        bigint NOT NULL,
    stage      bigint NOT NULL CHECK (stage >= 0),
    status     text NOT NULL
               CHECK (status IN ('PENDING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'SKIPPED', 'UNKNOWN')),
    job        uuid,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (task, run, stage)
);

-- What finished stages left. Never changed.
CREATE TABLE plan_checkpoint (
    task      uuid NOT NULL REFERENCES plan_task ON DELETE CASCADE,
    version   bigint NOT NULL CHECK (version > 0),
    run       bigint NOT NULL,
    completed bigint NOT NULL CHECK (completed > 0),
    context   text NOT NULL,
    saved_at  timestamptz NOT NULL,
    PRIMARY KEY (task, version)
);

-- What happened, in order. Never changed.
CREATE TABLE plan_event (
    plan     uuid NOT NULL REFERENCES plan ON DELETE CASCADE,
    seq      bigint NOT NULL,
    task     uuid,
    document text NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (plan, seq)
);
CREATE INDEX plan_event_task ON plan_event (task, seq) WHERE task IS NOT NULL;

-- What the node of a stage is told of its plan: JSON, never looked into. NULL for a job that is no stage.
ALTER TABLE job ADD COLUMN stage text;
ALTER TABLE job_finished ADD COLUMN stage text;
