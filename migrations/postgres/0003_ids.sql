-- What is known of a snowflake worker's number. Who holds it stands in its lease.
CREATE TABLE id_worker (
    worker        integer NOT NULL PRIMARY KEY CHECK (worker BETWEEN 0 AND 1023),
    node          text NOT NULL,             -- of the last holder: its next incarnation gets the number back
    mark_ms       bigint NOT NULL CHECK (mark_ms >= 0), -- no id has this time or a later one; ms since 1970
    fencing_token bigint NOT NULL,           -- of the last write; for the audit, never a fence
    updated_at    timestamptz NOT NULL
) WITH (fillfactor = 50);                    -- room for marks to stay on their page

-- The ids of a tag, given out in ranges.
CREATE TABLE id_segment (
    tag         text COLLATE "C" NOT NULL PRIMARY KEY,
    start       bigint NOT NULL CHECK (start >= 0), -- where it began, as was last asked for
    next        bigint NOT NULL CHECK (next >= 0),  -- the first id that is in no range yet
    step        bigint NOT NULL CHECK (step > 0),   -- the shortest range
    description text NOT NULL,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL         -- of the last range or change
) WITH (fillfactor = 50);

-- Numbers that rise strictly.
CREATE TABLE id_sequence (
    sequence   text COLLATE "C" NOT NULL PRIMARY KEY,
    start      bigint NOT NULL CHECK (start >= 0),
    next       bigint NOT NULL CHECK (next >= 0),   -- the next number to be granted
    increment  bigint NOT NULL CHECK (increment > 0),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 50);
