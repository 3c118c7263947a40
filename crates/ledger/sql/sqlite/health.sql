-- The settings on which "accepted means durable" rests: 2 is FULL, 3 is EXTRA.
SELECT synchronous FROM pragma_synchronous
