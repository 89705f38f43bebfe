-- Rates of calls shared by all replicas, by the generic cell rate algorithm.
--
-- rate:NAME   until when a rate's calls are paid for, in microseconds since 1970 by Redis's clock. The key expires soon
--             after that time, because a rate unused for that long is full again. Another format would need another key.

local methods = {}

-- Takes a call from each rate, given as name, interval in microseconds and burst, or from none if one is used up. Returns the
-- index of the first used-up rate, from 0, and the microseconds until it allows a call; nothing if all were taken from.
function methods.take(ahead, ...)
    local rates = { ... }
    local clock = redis.call('TIME')
    local now = clock[1] * 1000000 + clock[2] + ahead * 1000
    local taken = {}
    for at = 1, #rates, 3 do
        local key, interval, burst = base .. 'rate:' .. rates[at], tonumber(rates[at + 1]), tonumber(rates[at + 2])
        local paid = tonumber(redis.call('GET', key) or '') or now
        -- Never in the past, and never further ahead than calls can pay for: the clock may have been set back.
        paid = math.min(math.max(paid, now), now + interval * burst)
        local wait = paid - interval * (burst - 1) - now
        if wait > 0 then return { (at - 1) / 3, math.ceil(wait) } end
        taken[#taken + 1] = { key, paid + interval }
    end
    for _, rate in ipairs(taken) do
        local life = math.ceil((rate[2] - now) / 1000) + 1000
        redis.call('SET', rate[1], string.format('%.2f', rate[2]), 'PX', string.format('%.0f', life))
    end
    return {}
end

return methods[ARGV[1]](unpack(ARGV, 2))
