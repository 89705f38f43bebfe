-- The common beginning of the scripts.
--
-- KEYS[1] is the prefix of every key that a script touches. It contains the hash tag, so that all of them are in one slot of
-- a cluster. Numbers given as arguments stay strings: Lua would round and reformat them.

local base = KEYS[1]
-- The format of values. This Nonet knows nothing of a newer format and leaves it alone.
local VERSION = '1'

-- Returns Redis's time in milliseconds since 1970, shifted by as much as a test has moved its clock.
local function time(ahead)
    local seconds = redis.call('TIME')
    return seconds[1] * 1000 + math.floor(seconds[2] / 1000) + ahead
end

-- Lets a key live at least this long.
local function last(key, ms)
    if redis.call('PTTL', key) < ms then
        redis.call('PEXPIRE', key, string.format('%.0f', ms))
    end
end

-- Returns whether a gateway with this number is running.
local known = {}
local function is_held(holder)
    if holder == '0' then return false end
    if known[holder] == nil then known[holder] = redis.call('EXISTS', base .. 'holder:' .. holder) == 1 end
    return known[holder]
end

-- Registers this gateway as running, before it holds anything.
local function enter(holder, name, ms)
    redis.call('SET', base .. 'holder:' .. holder, name, 'PX', ms)
    known[holder] = true
end
