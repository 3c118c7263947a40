-- $1 id, $2 whether its bus is up, $3 which it is; each NULL as noted before
UPDATE instance SET bus_up = coalesce($2, bus_up), bus = coalesce($3, bus) WHERE instance_id = $1
