-- Outcomes of searches, and figures of tools. Rust decides what is stored; a script writes it if nothing has changed since it
-- was read.
--
-- outcomes        outcomes as JSON, by LENGTH:DOCUMENT:WORDS (LENGTH is that of DOCUMENT)
-- outcome_times   the same fields, by time
-- outcomes_of:DOCUMENT  the fields of one document
-- figures         figures as JSON, by tool
-- figure_times    tools by their last call

local LIFE = 400 * 24 * 3600 * 1000

local function drop(field)
    local length, rest = string.match(field, '^(%d+):(.*)$')
    redis.call('HDEL', base .. 'outcomes', field)
    redis.call('ZREM', base .. 'outcome_times', field)
    if length then redis.call('SREM', base .. 'outcomes_of:' .. string.sub(rest, 1, tonumber(length)), field) end
end

local methods = {}

-- Stores an outcome, replacing the value that was read, and drops outcomes before a time. Returns the numbers of outcomes of
-- the document and in total; nothing if the value has changed since.
function methods.put_outcome(field, document, read, value, at, oldest)
    if (redis.call('HGET', base .. 'outcomes', field) or '') ~= read then return {} end
    local of = base .. 'outcomes_of:' .. document
    redis.call('HSET', base .. 'outcomes', field, value)
    redis.call('ZADD', base .. 'outcome_times', at, field)
    redis.call('SADD', of, field)
    for _, old in ipairs(redis.call('ZRANGEBYSCORE', base .. 'outcome_times', '-inf', '(' .. oldest)) do drop(old) end
    for _, key in ipairs({ base .. 'outcomes', base .. 'outcome_times', of }) do last(key, LIFE) end
    return { redis.call('SCARD', of), redis.call('HLEN', base .. 'outcomes') }
end

-- Returns the outcomes of a document, each field before its value.
function methods.outcomes_of(document)
    local fields = redis.call('SMEMBERS', base .. 'outcomes_of:' .. document)
    local found = {}
    for _, field in ipairs(fields) do
        local value = redis.call('HGET', base .. 'outcomes', field)
        if value then
            found[#found + 1] = field
            found[#found + 1] = value
        end
    end
    return found
end

-- Drops outcomes that are still as they were read.
function methods.drop_outcomes(...)
    local outcomes = { ... }
    for at = 1, #outcomes, 2 do
        if redis.call('HGET', base .. 'outcomes', outcomes[at]) == outcomes[at + 1] then drop(outcomes[at]) end
    end
    return 0
end

-- Stores a tool's figures, replacing the value that was read. Returns 0 if it has changed since. Beyond the maximum number of
-- tools, the least recently called ones are dropped.
function methods.put_figures(most, ...)
    local tools = { ... }
    for at = 1, #tools, 4 do
        if (redis.call('HGET', base .. 'figures', tools[at]) or '') ~= tools[at + 1] then return 0 end
    end
    for at = 1, #tools, 4 do
        redis.call('HSET', base .. 'figures', tools[at], tools[at + 2])
        redis.call('ZADD', base .. 'figure_times', tools[at + 3], tools[at])
    end
    local too_many = redis.call('ZCARD', base .. 'figure_times') - most
    if too_many > 0 then
        for _, tool in ipairs(redis.call('ZRANGE', base .. 'figure_times', 0, too_many - 1)) do
            redis.call('HDEL', base .. 'figures', tool)
            redis.call('ZREM', base .. 'figure_times', tool)
        end
    end
    for _, key in ipairs({ 'figures', 'figure_times' }) do last(base .. key, LIFE) end
    return 1
end

-- Postpones the expiry of everything, as long as a gateway runs.
function methods.renew()
    for _, key in ipairs({ 'outcomes', 'outcome_times', 'figures', 'figure_times' }) do last(base .. key, LIFE) end
    for _, field in ipairs(redis.call('HKEYS', base .. 'outcomes')) do
        local length, rest = string.match(field, '^(%d+):(.*)$')
        if length then last(base .. 'outcomes_of:' .. string.sub(rest, 1, tonumber(length)), LIFE) end
    end
    return 0
end

return methods[ARGV[1]](unpack(ARGV, 2))
