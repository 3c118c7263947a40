-- What the nodes of an instance can do, written while not all instances reach each other over the bus: then jobs that no node
-- of their instance can take are transferred to one whose nodes can.
CREATE TABLE instance_nodes (
    instance_id text   COLLATE "C" NOT NULL PRIMARY KEY REFERENCES instance ON DELETE CASCADE,
    nodes       text,                        -- JSON; NULL: nothing is transferred to it
    given       bigint NOT NULL DEFAULT 0    -- rises with every transfer to it, so that it looks into its lane
);
