-- $1 id, $2 whether its bus is up
UPDATE instance SET bus_up = $2 WHERE instance_id = $1
