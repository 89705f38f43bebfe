-- Replicas, and what only one of them holds at a time: sessions and leases. The arguments are the method, this replica's
-- number, and the method's own arguments.
--
-- replicas        each replica's description of itself, by number
-- secret          the secret by which replicas recognize each other
-- epoch           the first replica since Redis was empty, and the time
-- session:ID      a client's session, with the replica that holds it; 0 for none
-- lease:NAME      the replica that holds a lease
-- note:NAME       a note for any replica to take

local DAY = 24 * 3600 * 1000
local me = ARGV[2]

-- Registers a replica: its name, the duration of its lease, its description, and the secret if there is none yet.
local function join(name, lease, told, secret, epoch)
    enter(me, name, lease)
    redis.call('HSET', base .. 'replicas', me, told)
    last(base .. 'replicas', DAY)
    redis.call('SET', base .. 'secret', secret, 'NX')
    last(base .. 'secret', 30 * DAY)
    redis.call('SET', base .. 'epoch', epoch, 'NX')
    last(base .. 'epoch', 30 * DAY)
    return { redis.call('GET', base .. 'secret'), redis.call('GET', base .. 'epoch') }
end

-- Returns the descriptions of all running replicas.
local function look()
    local all, told = redis.call('HGETALL', base .. 'replicas'), {}
    for at = 1, #all, 2 do
        if is_held(all[at]) then
            told[#told + 1] = all[at + 1]
        else
            redis.call('HDEL', base .. 'replicas', all[at])
        end
    end
    return told
end

local function leave()
    redis.call('HDEL', base .. 'replicas', me)
    redis.call('DEL', base .. 'holder:' .. me)
end

local function put_session(id, body, life)
    local key = base .. 'session:' .. id
    redis.call('HSET', key, 'v', VERSION, 'holder', me, 'body', body)
    redis.call('PEXPIRE', key, life)
end

-- Makes this replica the holder of a session, unless another running one holds it. `gone` is a replica that is not running.
-- Returns the session's body, or the number of its holder.
local function claim_session(id, gone, may)
    local key = base .. 'session:' .. id
    local values = redis.call('HMGET', key, 'v', 'holder', 'body')
    if not values[1] then return { '', '' } end
    if values[1] ~= VERSION then return redis.error_reply('NEWER session') end
    local holder = values[2]
    if holder == me then return { values[3], '' } end
    if holder ~= gone and is_held(holder) then return { '', holder } end
    if may ~= '1' then return { '', '0' } end
    redis.call('HSET', key, 'holder', me)
    return { values[3], '' }
end

-- Releases a session that this replica holds.
local function free_session(id)
    local key = base .. 'session:' .. id
    if redis.call('HGET', key, 'holder') == me then redis.call('HSET', key, 'holder', '0') end
end

-- Postpones the expiry of sessions that this replica holds. Returns the ones that are gone.
local function touch_sessions(life, ...)
    local gone = {}
    for _, id in ipairs({ ... }) do
        local key = base .. 'session:' .. id
        if redis.call('HGET', key, 'holder') == me then
            redis.call('PEXPIRE', key, life)
        elseif redis.call('EXISTS', key) == 0 then
            gone[#gone + 1] = id
        end
    end
    return gone
end

-- Takes leases. Each name comes with what may be taken: 0 nothing, 1 the lease of an ended replica, 2 also a free one. `gone`
-- is a replica that does not answer. It counts as ended unless its key has been renewed, so that the key lives longer than
-- `late`. Returns the holder of each lease, 0 for none.
local function take_leases(gone, late, ...)
    local asked, holders = { ... }, {}
    for at = 1, #asked, 2 do
        local key, may = base .. 'lease:' .. asked[at], asked[at + 1]
        local holder = redis.call('GET', key)
        local runs = holder and holder ~= me and is_held(holder)
        if runs and holder == gone then runs = redis.call('PTTL', base .. 'holder:' .. holder) > tonumber(late) end
        if runs then
            holders[#holders + 1] = holder
        elseif holder == me or may == '2' or (may == '1' and holder) then
            redis.call('SET', key, me, 'PX', DAY)
            holders[#holders + 1] = me
        else
            holders[#holders + 1] = '0'
        end
    end
    return holders
end

local function end_lease(name)
    local key = base .. 'lease:' .. name
    if redis.call('GET', key) == me then redis.call('DEL', key) end
end

local methods = {
    join = join, look = look, leave = leave, put_session = put_session, claim_session = claim_session,
    free_session = free_session, touch_sessions = touch_sessions, take_leases = take_leases, end_lease = end_lease,
}
return methods[ARGV[1]](unpack(ARGV, 3))
