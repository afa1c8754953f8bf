-- Takes an admission back, so that the node begins a silence like one that
-- restarted (rule 22). What it keeps stays, behind the gate, until it is staged.
--
-- KEYS  none
-- ARGV  cluster, incarnation, epoch, note of the silence
-- Reply "OK"; "RACED" when this is not the node as it was seen: another
--       incarnation, another epoch, or not admitted
local role, replid = replication()
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'epoch')
if role ~= 'master' or state[1] ~= ARGV[1] or replid ~= ARGV[2] then return 'RACED' end
if state[2] ~= replid or state[3] ~= ARGV[3] then return 'RACED' end
redis.call('HDEL', STATE, 'replid')
redis.call('HSET', STATE, 'note', ARGV[4])
return 'OK'
