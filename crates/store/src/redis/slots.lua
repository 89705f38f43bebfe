-- Slots shared by all replicas: the number of concurrent calls to a server.
--
-- slots:NAME   the taken slots, each with its expiry in milliseconds by Redis's clock. A replica postpones the expiry while a
--              slot is in use, so that the slots of an ended replica are soon free. Another format would
--              need another key.

local methods = {}

-- Takes one of `most` slots, if one is free. Returns whether it did.
function methods.take(ahead, life, name, most, slot)
    local key, now = base .. 'slots:' .. name, time(tonumber(ahead))
    redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now))
    if redis.call('ZCARD', key) >= tonumber(most) then return 0 end
    redis.call('ZADD', key, string.format('%.0f', now + life), slot)
    last(key, tonumber(life))
    return 1
end

-- Postpones the expiry of slots, given as name and slot. A slot that became free meanwhile is taken again.
function methods.keep(ahead, life, ...)
    local slots = { ... }
    local until_then = string.format('%.0f', time(tonumber(ahead)) + life)
    for at = 1, #slots, 2 do
        local key = base .. 'slots:' .. slots[at]
        redis.call('ZADD', key, until_then, slots[at + 1])
        last(key, tonumber(life))
    end
end

-- Releases a slot.
function methods.give(name, slot)
    redis.call('ZREM', base .. 'slots:' .. name, slot)
end

return methods[ARGV[1]](unpack(ARGV, 2))
