-- Revokes an admission, so that the node is quarantined like a node that restarted (rule 22). Its data stay,
-- behind the shut gate, until it is staged.
--
-- KEYS  none
-- ARGV  cluster, incarnation, epoch, note of the quarantine
-- Reply "OK"; "RACED" if it is not the node as observed: another incarnation, another
--       epoch, or not admitted
local role, replid = replication()
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'epoch')
if role ~= 'master' or not ours(state[1], ARGV[1]) or replid ~= ARGV[2] then return 'RACED' end
if state[2] ~= replid or state[3] ~= ARGV[3] then return 'RACED' end
redis.call('HDEL', STATE, 'replid')
redis.call('HSET', STATE, 'note', ARGV[4])
return 'OK'
