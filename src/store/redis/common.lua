-- What the scripts begin with.
--
-- KEYS[1] is the beginning of every key that a script touches. It has the hash tag, so that all of them are in one slot of a
-- cluster. Numbers that come as arguments stay texts: Lua would round them and write them in its own way.

local base = KEYS[1]
-- The format of values. Of a newer one this Nonet knows nothing: it is left alone.
local VERSION = '1'

-- The time of Redis in milliseconds since 1970, moved by as much as a test has moved its clock.
local function time(ahead)
    local seconds = redis.call('TIME')
    return seconds[1] * 1000 + math.floor(seconds[2] / 1000) + ahead
end

-- Lets a key live at least so long.
local function last(key, ms)
    if redis.call('PTTL', key) < ms then
        redis.call('PEXPIRE', key, string.format('%.0f', ms))
    end
end

-- Whether a gateway with this number runs.
local known = {}
local function is_held(holder)
    if holder == '0' then return false end
    if known[holder] == nil then known[holder] = redis.call('EXISTS', base .. 'holder:' .. holder) == 1 end
    return known[holder]
end

-- Says that this gateway runs, before it holds anything.
local function enter(holder, name, ms)
    redis.call('SET', base .. 'holder:' .. holder, name, 'PX', ms)
    known[holder] = true
end
