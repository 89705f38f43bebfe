-- Rows in tables. The first argument is the method; the next four are common to every method: this gateway's number, its name,
-- how long its lease lasts, and how far its clock is ahead.
--
-- record:TABLE:LENGTH:OWNER:ID  one row (LENGTH is that of OWNER)
-- of:TABLE:OWNER                members, in the order in which they were first put
-- kind:TABLE                    the same for all owners
-- due, due:TABLE                members with a due number, by that number
-- notices                       the number of notices, by HOLDER:OWNER
-- changes:OWNER, count:NAME     counters
-- counters, tables              the names of all counters and tables
-- number                        the number of the last row

local HEADS = { 'v', 'kind', 'owner', 'id', 'due', 'rev', 'put', 'holder', 'n' }
local FIELDS = { 'v', 'kind', 'owner', 'id', 'due', 'rev', 'put', 'holder', 'n', 'body' }
local LIFE = 400 * 24 * 3600 * 1000
-- Tables whose due numbers are times, in one index.
local TIMED = { 'watch', 'schedule', 'fact', 'goal', 'todo', 'parked', 'notice', 'approval' }

local me, name, lease, ahead = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local newer = 0

local is_timed = {}
for _, kind in ipairs(TIMED) do is_timed[kind] = true end

local function member_of(kind, owner, id) return kind .. ':' .. #owner .. ':' .. owner .. ':' .. id end
local function of(kind, owner) return base .. 'of:' .. kind .. ':' .. owner end
local function kind_of(kind) return base .. 'kind:' .. kind end
local function due_of(kind) return is_timed[kind] and base .. 'due' or base .. 'due:' .. kind end
local function key_of(member) return base .. 'record:' .. member end

-- Returns a member's row as a table; nil if there is none, or if it is a newer Nonet's, which is counted. A member whose row
-- has expired is removed from the index. The head of a row has no body.
local function read(member, index, heads)
    local fields = heads and HEADS or FIELDS
    local values = redis.call('HMGET', key_of(member), unpack(fields))
    if not values[1] then
        if index then redis.call('ZREM', index, member) end
        return nil
    end
    if values[1] ~= VERSION then
        newer = newer + 1
        return nil
    end
    local row = { member = member }
    for at, field in ipairs(fields) do row[field] = values[at] end
    return row
end

local function count_notice(row, by)
    if row.kind ~= 'notice' then return end
    local notices, field = base .. 'notices', row.holder .. ':' .. row.owner
    if redis.call('HINCRBY', notices, field, by) <= 0 then redis.call('HDEL', notices, field) end
    last(notices, LIFE)
end

local function set_due(row, due)
    local index = due_of(row.kind)
    if due == '' then
        redis.call('ZREM', index, row.member)
    else
        redis.call('ZADD', index, due, row.member)
        last(index, LIFE)
    end
    redis.call('HSET', key_of(row.member), 'due', due)
end

-- The writes of a batch: each takes its arguments from `take`.
local writes = {}

local function row_of(take)
    local kind, owner, id = take(), take(), take()
    return member_of(kind, owner, id), kind, owner, id
end

function writes.put(take)
    local member, kind, owner, id = row_of(take)
    local body, due, held, newest = take(), take(), take(), take()
    local old, key = read(member), key_of(member)
    if old then count_notice(old, -1) end
    local n = old and newest ~= '1' and old.n or tostring(redis.call('INCR', base .. 'number'))
    local row = { member = member, kind = kind, owner = owner, holder = held == '1' and me or '0' }
    redis.call('HSET', key, 'v', VERSION, 'kind', kind, 'owner', owner, 'id', id, 'body', body, 'holder', row.holder, 'n', n,
        'put', string.format('%.0f', time(ahead)))
    redis.call('HINCRBY', key, 'rev', 1)
    count_notice(row, 1)
    set_due(row, due)
    redis.call('ZADD', of(kind, owner), n, member)
    redis.call('ZADD', kind_of(kind), n, member)
    redis.call('SADD', base .. 'tables', kind)
    for _, used in ipairs({ key, of(kind, owner), kind_of(kind), base .. 'number', base .. 'tables' }) do last(used, LIFE) end
end

function writes.change(take)
    local member = row_of(take)
    local body, due, row = take(), take(), read(member)
    redis.call('HSET', key_of(member), 'body', body)
    redis.call('HINCRBY', key_of(member), 'rev', 1)
    set_due(row, due)
    last(key_of(member), LIFE)
end

-- Gives a row to this gateway, which counts as a change, so that a gateway believed to have ended can no longer change it.
function writes.hold(take)
    local member = row_of(take)
    local held, row = take() == '1', read(member)
    count_notice(row, -1)
    row.holder = held and me or '0'
    count_notice(row, 1)
    redis.call('HSET', key_of(member), 'holder', row.holder)
    if held then redis.call('HINCRBY', key_of(member), 'rev', 1) end
end

function writes.delete(take)
    local member, kind, owner = row_of(take)
    local row = read(member)
    redis.call('DEL', key_of(member))
    for _, index in ipairs({ of(kind, owner), kind_of(kind), due_of(kind) }) do redis.call('ZREM', index, member) end
    if row then count_notice(row, -1) end
end

-- A counter starts at random, so that no number recurs.
function writes.bump(take)
    local counter = take()
    local seed = redis.sha1hex(redis.call('TIME')[2] .. counter .. math.random())
    local first = string.format('%.0f', tonumber(string.sub(seed, 1, 12), 16))
    if not redis.call('SET', base .. counter, first, 'NX', 'PX', LIFE) then redis.call('INCR', base .. counter) end
    redis.call('SADD', base .. 'counters', counter)
    for _, used in ipairs({ counter, 'counters' }) do last(base .. used, LIFE) end
end

-- Writes a batch if its conditions hold: the number of conditions, each with its kind and arguments, then the writes. The first
-- argument says whether the gateway holds any of the rows.
local function commit()
    -- From the arguments of the script: Lua cannot pass thousands on.
    local at = 5
    local function take()
        at = at + 1
        return ARGV[at]
    end
    local holds = take()
    for _ = 1, tonumber(take()) do
        if take() == 'count' then
            local index = of(take(), take())
            if redis.call('ZCARD', index) ~= tonumber(take()) then return 0 end
        else
            local member = row_of(take)
            local row = read(member)
            if newer > 0 then return redis.error_reply('NEWER ' .. member) end
            if (row and row.rev or '0') ~= take() then return 0 end
        end
    end
    if holds == '1' then enter(me, name, lease) end
    while at < #ARGV do writes[take()](take) end
    return 1
end

local methods = {}

-- Returns a row's fields, without the body if only the head is asked for, but always with its size.
local function shown(row, heads)
    local size = heads and redis.call('HSTRLEN', key_of(row.member), 'body') or #row.body
    return { row.kind, row.owner, row.id, row.body or '', row.due, row.rev, row.put, row.holder, row.n, tostring(size) }
end

-- Returns the rows of these members of an index, and the number of newer ones. With `kinds`, rows of other tables are left out.
local function answer(index, members, heads, kinds)
    local found = {}
    for _, member in ipairs(members) do
        local row = read(member, index, heads)
        if row and (not kinds or kinds[row.kind]) then found[#found + 1] = shown(row, heads) end
    end
    return { newer, found, #members }
end

-- Returns rows of an owner, or of the whole table if there is no owner.
function methods.scan(heads, newest_first, after, limit, kind, owner)
    local index = owner and of(kind, owner) or kind_of(kind)
    local members
    if newest_first == '1' then
        members = redis.call('ZREVRANGEBYSCORE', index, after == '' and '+inf' or '(' .. after, '-inf', 'LIMIT', 0, limit)
    else
        members = redis.call('ZRANGEBYSCORE', index, after == '' and '-inf' or '(' .. after, '+inf', 'LIMIT', 0, limit)
    end
    return answer(index, members, heads == '1')
end

-- Returns rows that are due, by their numbers. All tables must be in one index.
function methods.due(heads, until_then, skip, limit, ...)
    local kinds, first = {}, ...
    for _, kind in ipairs({ ... }) do kinds[kind] = true end
    local index = due_of(first)
    local members = redis.call('ZRANGEBYSCORE', index, '-inf', until_then, 'LIMIT', skip, limit)
    -- Between two pages nothing is removed: the second would miss as many.
    return answer(skip == '0' and #members < tonumber(limit) and index, members, heads == '1', kinds)
end

-- Returns which of these holders run.
function methods.running(...)
    local found = {}
    for _, holder in ipairs({ ... }) do
        if is_held(holder) then found[#found + 1] = holder end
    end
    return found
end

function methods.time() return string.format('%.0f', time(ahead)) end

-- Postpones the expiry of everything, as long as a gateway runs.
function methods.renew()
    for _, used in ipairs({ 'number', 'due', 'notices', 'tables', 'counters', 'carried' }) do last(base .. used, LIFE) end
    for _, counter in ipairs(redis.call('SMEMBERS', base .. 'counters')) do last(base .. counter, LIFE) end
    local kinds = redis.call('SMEMBERS', base .. 'tables')
    for _, kind in ipairs(TIMED) do kinds[#kinds + 1] = kind end
    for _, kind in ipairs(kinds) do
        last(kind_of(kind), LIFE)
        last(due_of(kind), LIFE)
        for _, member in ipairs(redis.call('ZRANGE', kind_of(kind), 0, -1)) do
            last(key_of(member), LIFE)
            local owner = redis.call('HGET', key_of(member), 'owner')
            if owner then
                last(of(kind, owner), LIFE)
                if kind == 'fact' then last(base .. 'changes:' .. owner, LIFE) end
            end
        end
    end
    return 0
end

if ARGV[1] == 'commit' then return commit() end
return methods[ARGV[1]](unpack(ARGV, 6))
