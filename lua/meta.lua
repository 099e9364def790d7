-- The pool's `meta`: schema, hash configuration, what the self-check and the masters' poller found. Read-only.
--
-- KEYS[1]  the pool's key prefix
-- RETURNS  the hash as a flat list
-- ERRORS   none
-- COST     O(fields)
--
-- include: core

return redis.call('HGETALL', core.prefix .. 'meta')
