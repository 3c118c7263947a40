-- $1 id, $2 whether its bus is up, or NULL, $3 which it is, or NULL as noted before
UPDATE instance SET bus_up = $2, bus = coalesce($3, bus) WHERE instance_id = $1
