-- Results and jobs. The first argument is the method; the next five are common to every method: this gateway's number, its
-- name, how long its lease lasts, how far its clock is ahead, and how long entries are kept.
--
-- entry:ID       one result or job; its value is elsewhere, in chunks
-- ended          ids of ended entries, in the order in which they ended
-- working        ids of jobs that have not ended, by the time they were stored
-- share:SHARE    ids of ended entries, by the client whose quota they count against
-- bytes, counts  shares by their size, and by their number of entries
-- place          BYTES:SHARE of ended entries, by id: what remains of an expired entry
-- jobs:OWNER     ids of jobs, by their start
-- total          bytes of all values
-- cancel:HOLDER  ids of a gateway's jobs that are to be cancelled
-- ended_number   of the entry that ended last

local FIELDS = { 'v', 'id', 'owner', 'label', 'holder', 'state', 'started', 'ended', 'bytes', 'value', 'share', 'aged' }
local DAY = 24 * 3600 * 1000

local me, name, lease = ARGV[2], ARGV[3], ARGV[4]
local now, age = time(tonumber(ARGV[5])), tonumber(ARGV[6])
-- Longer than the age, so that an entry removed by age is also removed from every index.
local life = age + DAY
-- Values whose entries are gone: the name and the size of each.
local gone = {}

-- Returns the entry as a table, and whether there is one of a newer Nonet.
local function read(id)
    local values = redis.call('HMGET', base .. 'entry:' .. id, unpack(FIELDS))
    if not values[1] then return nil, false end
    if values[1] ~= VERSION then return nil, true end
    local entry = {}
    for at, field in ipairs(FIELDS) do entry[field] = values[at] end
    return entry, false
end

local function of_share(share) return base .. 'share:' .. share end

-- Removes an ended entry from every index.
local function leave(id)
    local bytes, share = string.match(redis.call('HGET', base .. 'place', id) or '', '^(%d+):(.*)$')
    if not bytes then return end
    redis.call('HDEL', base .. 'place', id)
    redis.call('ZREM', base .. 'ended', id)
    redis.call('ZREM', of_share(share), id)
    redis.call('DECRBY', base .. 'total', bytes)
    if redis.call('ZCARD', of_share(share)) == 0 then
        redis.call('ZREM', base .. 'bytes', share)
        redis.call('ZREM', base .. 'counts', share)
    else
        redis.call('ZINCRBY', base .. 'bytes', '-' .. bytes, share)
        redis.call('ZINCRBY', base .. 'counts', -1, share)
    end
end

local function drop(entry)
    redis.call('DEL', base .. 'entry:' .. entry.id)
    redis.call('ZREM', base .. 'working', entry.id)
    redis.call('ZREM', base .. 'jobs:' .. entry.owner, entry.id)
    leave(entry.id)
    if entry.value ~= '' then gone[#gone + 1] = { entry.value, entry.bytes } end
end

-- Drops the oldest entry of an index, if `goes` allows it. Returns false if not.
local function drop_oldest(index, newest, goes)
    local id = redis.call('ZRANGE', index, 0, 0)[1]
    if not id or id == newest then return false end
    local entry, is_newer = read(id)
    if is_newer then return false end
    if not entry then
        leave(id)
        redis.call('ZREM', index, id)
        return true
    end
    if goes and not goes(entry) then return false end
    drop(entry)
    return true
end

local function is_old(entry) return tonumber(entry.aged) <= now - age end

local function bytes_of(share) return tonumber(redis.call('ZSCORE', base .. 'bytes', share) or 0) end

local function entries()
    return redis.call('ZCARD', base .. 'ended') + redis.call('ZCARD', base .. 'working')
end

local function total() return tonumber(redis.call('GET', base .. 'total') or 0) end

-- Drops the oldest entry of the largest share. Returns false if no share has any to drop.
local function drop_of_largest(by, newest)
    local at = 0
    while true do
        local some = redis.call('ZREVRANGE', base .. by, at, at + 9)
        for _, share in ipairs(some) do
            if drop_oldest(of_share(share), newest) then return true end
        end
        if #some == 0 then return false end
        at = at + 10
    end
end

-- Removes expired entries, then the oldest of the newest entry's share until that share fits, then the oldest of the largest
-- share until all fit. Never removes the newest entry or a running job.
local function make_room(newest, share, most_of_share, most, most_entries)
    while drop_oldest(base .. 'ended', newest, is_old) do end
    while share and bytes_of(share) > most_of_share and drop_oldest(of_share(share), newest) do end
    while total() > most and drop_of_largest('bytes', newest) do end
    while entries() > most_entries and drop_of_largest('counts', newest) do end
end

local function shown(entry)
    return { entry.id, entry.owner, entry.label, entry.state, entry.started, entry.ended, is_held(entry.holder) and '1' or '0' }
end

local methods = {}

-- Stores an entry, replacing the one with its id. A running job replaces nothing: it may have ended before its start was
-- stored. An entry that is not a job has no holder.
function methods.put(id, owner, label, is_job, state, started, ended, bytes, value, share, most_of_share, most, most_entries)
    local old, is_newer = read(id)
    if is_newer then return redis.error_reply('NEWER ' .. id) end
    if is_job == '1' then enter(me, name, lease) end
    local works = state == 'working'
    if old and works then return gone end
    if old then drop(old) end
    redis.call('HSET', base .. 'entry:' .. id, 'v', VERSION, 'id', id, 'owner', owner, 'label', label,
        'holder', is_job == '1' and me or '0', 'state', state, 'started', started, 'ended', ended, 'bytes', bytes, 'value', value,
        'share', share, 'aged', string.format('%.0f', now))
    if works then
        redis.call('ZADD', base .. 'working', string.format('%.0f', now), id)
    else
        local n = redis.call('INCR', base .. 'ended_number')
        redis.call('ZADD', base .. 'ended', n, id)
        redis.call('ZADD', of_share(share), n, id)
        redis.call('ZINCRBY', base .. 'bytes', bytes, share)
        redis.call('ZINCRBY', base .. 'counts', 1, share)
        redis.call('INCRBY', base .. 'total', bytes)
        redis.call('HSET', base .. 'place', id, bytes .. ':' .. share)
    end
    if is_job == '1' then redis.call('ZADD', base .. 'jobs:' .. owner, started, id) end
    if not works then make_room(id, share, tonumber(most_of_share), tonumber(most), tonumber(most_entries)) end
    local used = { 'entry:' .. id, 'ended', 'working', 'share:' .. share, 'bytes', 'counts', 'place', 'jobs:' .. owner, 'total', 'ended_number' }
    for _, key in ipairs(used) do last(base .. key, life) end
    return gone
end

function methods.jobs(owner, limit)
    local found = {}
    for _, id in ipairs(redis.call('ZREVRANGE', base .. 'jobs:' .. owner, 0, limit - 1)) do
        local entry, is_newer = read(id)
        if entry and entry.owner == owner then
            found[#found + 1] = shown(entry)
        elseif not is_newer then
            redis.call('ZREM', base .. 'jobs:' .. owner, id)
        end
    end
    return found
end

function methods.job(id, owner)
    local entry = read(id)
    local is_job = entry and entry.owner == owner and redis.call('ZSCORE', base .. 'jobs:' .. owner, id)
    return is_job and { shown(entry) } or {}
end

-- Returns the results of all owners, latest first.
function methods.results(limit)
    local found, at = {}, 0
    limit = tonumber(limit)
    while #found < limit do
        local ids = redis.call('ZREVRANGE', base .. 'ended', at, at + 99)
        if #ids == 0 then break end
        for _, id in ipairs(ids) do
            local entry = read(id)
            if entry and entry.holder == '0' and #found < limit then
                found[#found + 1] = { entry.id, entry.owner, entry.bytes, entry.aged }
            end
        end
        at = at + 100
    end
    return found
end

-- Removes an ended entry. Returns whether it existed, and its value.
function methods.remove_ended(id, owner)
    local entry = read(id)
    if not entry or entry.owner ~= owner or entry.state == 'working' then return { 0, gone } end
    drop(entry)
    return { 1, gone }
end

-- Asks the gateway that runs a job to cancel it.
function methods.ask_to_cancel(id, owner)
    local entry = read(id)
    if entry and entry.owner == owner and redis.call('ZSCORE', base .. 'working', id) and is_held(entry.holder) then
        redis.call('SADD', base .. 'cancel:' .. entry.holder, id)
        redis.call('PEXPIRE', base .. 'cancel:' .. entry.holder, 60000)
    end
    return 0
end

-- Returns this gateway's jobs that others want cancelled, each once.
function methods.to_cancel()
    local ids = redis.call('SMEMBERS', base .. 'cancel:' .. me)
    redis.call('DEL', base .. 'cancel:' .. me)
    return ids
end

function methods.counts() return { entries(), total() } end

-- Removes expired entries, including jobs of gateways that have ended, and renews running jobs.
function methods.tidy(most, most_entries)
    for _, id in ipairs(redis.call('ZRANGE', base .. 'working', 0, -1)) do
        local entry, is_newer = read(id)
        if not entry then
            if not is_newer then redis.call('ZREM', base .. 'working', id) end
        elseif is_held(entry.holder) then
            for _, key in ipairs({ 'entry:' .. id, 'working', 'jobs:' .. entry.owner }) do last(base .. key, life) end
        elseif is_old(entry) then
            drop(entry)
        end
    end
    make_room(nil, nil, nil, tonumber(most), tonumber(most_entries))
    return gone
end

return methods[ARGV[1]](unpack(ARGV, 7))
