-- What is known of a snowflake worker's number. Who holds it stands in its lease.
CREATE TABLE id_worker (
    worker        INTEGER NOT NULL PRIMARY KEY CHECK (worker BETWEEN 0 AND 1023),
    node          TEXT NOT NULL,             -- of the last holder: its next incarnation gets the number back
    mark_ms       INTEGER NOT NULL CHECK (mark_ms >= 0), -- no id has this time or a later one; ms since 1970
    fencing_token INTEGER NOT NULL,          -- of the last write; for the audit, never a fence
    updated_at    INTEGER NOT NULL
) STRICT;

-- The ids of a tag, given out in ranges.
CREATE TABLE id_segment (
    tag         TEXT NOT NULL PRIMARY KEY,
    start       INTEGER NOT NULL CHECK (start >= 0), -- where it began, as was last asked for
    next        INTEGER NOT NULL CHECK (next >= 0),  -- the first id that is in no range yet
    step        INTEGER NOT NULL CHECK (step > 0),   -- the shortest range
    description TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL             -- of the last range or change
) STRICT, WITHOUT ROWID;

-- Numbers that rise strictly.
CREATE TABLE id_sequence (
    sequence   TEXT NOT NULL PRIMARY KEY,
    start      INTEGER NOT NULL CHECK (start >= 0),
    next       INTEGER NOT NULL CHECK (next >= 0),   -- the next number to be granted
    increment  INTEGER NOT NULL CHECK (increment > 0),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
