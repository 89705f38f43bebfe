-- A model's vectors of tools, under the first digit of their names: each slot holds a sixteenth of them.
--
-- NAME    the vector as bytes (`vectors.rs`)
-- times   the names by their last use

local times = base .. 'times'

-- Renews a vector; returns 0 if there is none.
local function use(name, now, life)
    if redis.call('PEXPIRE', base .. name, life) == 0 then return 0 end
    redis.call('ZADD', times, string.format('%.0f', now), name)
    return 1
end

local methods = {}

-- Returns the vectors of these names, with nothing where there is none.
function methods.read(ahead, life, ...)
    local names, keys, now = { ... }, {}, time(ahead)
    for at, name in ipairs(names) do keys[at] = base .. name end
    local found = redis.call('MGET', unpack(keys))
    for at, value in ipairs(found) do
        if value then use(names[at], now, life) end
    end
    last(times, tonumber(life))
    return found
end

-- Renews vectors, and returns the indices of missing ones, from 0.
function methods.use(ahead, life, ...)
    local missing, now = {}, time(ahead)
    for at, name in ipairs({ ... }) do
        if use(name, now, life) == 0 then missing[#missing + 1] = at - 1 end
    end
    last(times, tonumber(life))
    return missing
end

-- Stores vectors, each after its name, and beyond the maximum drops the least recently used ones.
function methods.put(ahead, life, most, ...)
    local vectors, now = { ... }, time(ahead)
    for at = 1, #vectors, 2 do
        redis.call('SET', base .. vectors[at], vectors[at + 1], 'PX', life)
        redis.call('ZADD', times, string.format('%.0f', now), vectors[at])
    end
    redis.call('ZREMRANGEBYSCORE', times, '-inf', '(' .. string.format('%.0f', now - life))
    local too_many = redis.call('ZCARD', times) - most
    if too_many > 0 then
        for _, name in ipairs(redis.call('ZRANGE', times, 0, too_many - 1)) do redis.call('UNLINK', base .. name) end
        redis.call('ZREMRANGEBYRANK', times, 0, too_many - 1)
    end
    last(times, tonumber(life))
    return 0
end

return methods[ARGV[1]](unpack(ARGV, 2))
