-- Records. The first argument is the method; the next four are common to every method: this gateway's number, its name, how
-- long its lease lasts, and how far its clock is ahead.
--
-- record:KIND:LENGTH:OWNER:ID   one record, with the vector of a fact (LENGTH is that of OWNER)
-- of:KIND:OWNER                 members, in the order in which they were stored
-- kind:KIND                     the same for all owners
-- due                           members with a due time, by that time
-- notices                       the number of notices, by HOLDER:OWNER
-- changes:OWNER                 the number of changes to an owner's facts
-- number                        the number of the last stored record

local FIELDS = { 'v', 'kind', 'owner', 'id', 'body', 'due', 'rev', 'put', 'holder', 'n' }
local LIFE = 400 * 24 * 3600 * 1000

local me, name, lease, ahead = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local newer = 0

local function member_of(kind, owner, id) return kind .. ':' .. #owner .. ':' .. owner .. ':' .. id end
local function of(kind, owner) return base .. 'of:' .. kind .. ':' .. owner end

-- Returns a member's record as a table; nil if there is none, or if it is a newer Nonet's, which is counted. A member whose
-- record has expired is removed from the index.
local function read(member, index)
    local values = redis.call('HMGET', base .. 'record:' .. member, unpack(FIELDS))
    if not values[1] then
        if index then redis.call('ZREM', index, member) end
        return nil
    end
    if values[1] ~= VERSION then
        newer = newer + 1
        return nil
    end
    local record = { member = member }
    for at, field in ipairs(FIELDS) do record[field] = values[at] end
    return record
end

local function shown(record)
    return { record.kind, record.owner, record.id, record.body, record.due, record.rev, record.put }
end

local function answer(records)
    local list = {}
    for at, record in ipairs(records) do list[at] = shown(record) end
    return { newer, list }
end

local function count_notice(record, by)
    if record.kind ~= 'notice' then return end
    local notices, field = base .. 'notices', record.holder .. ':' .. record.owner
    if redis.call('HINCRBY', notices, field, by) <= 0 then redis.call('HDEL', notices, field) end
    last(notices, LIFE)
end

-- Counts a change to an owner's facts. The count starts at random, so that no number recurs.
local function changed(record)
    if record.kind ~= 'fact' then return end
    local changes = base .. 'changes:' .. record.owner
    local seed = redis.sha1hex(redis.call('TIME')[2] .. record.member .. math.random())
    local first = tonumber(string.sub(seed, 1, 12), 16)
    if not redis.call('SET', changes, string.format('%.0f', first), 'NX', 'PX', LIFE) then
        redis.call('INCR', changes)
        last(changes, LIFE)
    end
end

local function set_due(record, due)
    if due == '' then
        redis.call('ZREM', base .. 'due', record.member)
    else
        redis.call('ZADD', base .. 'due', due, record.member)
        last(base .. 'due', LIFE)
    end
    redis.call('HSET', base .. 'record:' .. record.member, 'due', due)
    record.due = due
end

-- Gives a record to a gateway, or to none. A takeover counts as a change, so that a gateway believed to have ended can no
-- longer change the record.
local function set_holder(record, holder)
    local key = base .. 'record:' .. record.member
    count_notice(record, -1)
    record.holder = holder
    count_notice(record, 1)
    redis.call('HSET', key, 'holder', holder)
    if holder ~= '0' then record.rev = tostring(redis.call('HINCRBY', key, 'rev', 1)) end
end

local function drop(record)
    redis.call('DEL', base .. 'record:' .. record.member)
    redis.call('ZREM', of(record.kind, record.owner), record.member)
    redis.call('ZREM', base .. 'kind:' .. record.kind, record.member)
    redis.call('ZREM', base .. 'due', record.member)
    count_notice(record, -1)
    changed(record)
end

-- Returns all records of an index, in order.
local function all(index)
    local found = {}
    for _, member in ipairs(redis.call('ZRANGE', index, 0, -1)) do found[#found + 1] = read(member, index) end
    return found
end

-- Removes a record. A parked record's parts are removed with it.
local function remove(record)
    if record.kind == 'parked' then
        for _, part in ipairs(all(of('parked', record.id))) do drop(part) end
    end
    drop(record)
end

local methods = {}

function methods.put(kind, owner, id, body, due, held, how, most)
    local member = member_of(kind, owner, id)
    local old = read(member)
    if newer > 0 then return redis.error_reply('NEWER ' .. member) end
    local index = of(kind, owner)
    local others, dropped = redis.call('ZCARD', index), 0
    if redis.call('ZSCORE', index, member) then others = others - 1 end
    most = tonumber(most)
    if how == 'refuse' then
        if others >= most then return -1 end
    else
        local too_many = others + 1 - math.max(most, 1)
        for _, record in ipairs(too_many > 0 and all(index) or {}) do
            if dropped < too_many and record.member ~= member then
                drop(record)
                dropped = dropped + 1
            end
        end
    end
    if held == '1' then enter(me, name, lease) end
    local key = base .. 'record:' .. member
    local holder = held == '1' and me or '0'
    local n = old and old.n or tostring(redis.call('INCR', base .. 'number'))
    if old then count_notice(old, -1) end
    redis.call('HSET', key, 'v', VERSION, 'kind', kind, 'owner', owner, 'id', id, 'body', body, 'holder', holder, 'n', n,
        'put', string.format('%.0f', time(ahead)))
    redis.call('HINCRBY', key, 'rev', 1)
    redis.call('HDEL', key, 'model', 'vector')
    local record = { member = member, kind = kind, owner = owner, holder = holder }
    set_due(record, due)
    count_notice(record, 1)
    changed(record)
    redis.call('ZADD', index, n, member)
    redis.call('ZADD', base .. 'kind:' .. kind, n, member)
    for _, used in ipairs({ key, index, base .. 'kind:' .. kind, base .. 'number' }) do last(used, LIFE) end
    return dropped
end

function methods.get(kind, owner, id)
    return answer({ read(member_of(kind, owner, id)) })
end

function methods.all(kind, owner) return answer(all(of(kind, owner))) end

function methods.of_kind(kind) return answer(all(base .. 'kind:' .. kind)) end

-- Returns the record as it was read, unless it has been changed or removed since.
local function unchanged(kind, owner, id, rev)
    local record = read(member_of(kind, owner, id))
    return record and record.rev == rev and record or nil
end

function methods.change(kind, owner, id, rev, body, due)
    local record = unchanged(kind, owner, id, rev)
    if not record then return 0 end
    local key = base .. 'record:' .. record.member
    redis.call('HSET', key, 'body', body)
    redis.call('HINCRBY', key, 'rev', 1)
    redis.call('HDEL', key, 'model', 'vector')
    set_due(record, due)
    changed(record)
    last(key, LIFE)
    return 1
end

function methods.remove(kind, owner, id, rev)
    local record = unchanged(kind, owner, id, rev)
    if not record then return 0 end
    drop(record)
    return 1
end

function methods.hold(kind, owner, id, rev)
    local record = unchanged(kind, owner, id, rev)
    if not record or is_held(record.holder) or record.holder == me then return 0 end
    enter(me, name, lease)
    set_holder(record, me)
    return 1
end

function methods.take(kind, owner, id)
    local record = read(member_of(kind, owner, id))
    if record then remove(record) end
    return answer({ record })
end

function methods.drop_old(kind, owner, before)
    local dropped = 0
    for _, record in ipairs(all(of(kind, owner))) do
        if tonumber(record.put) < tonumber(before) then
            remove(record)
            dropped = dropped + 1
        end
    end
    return dropped
end

function methods.count_of(kind, owner) return redis.call('ZCARD', of(kind, owner)) end

local function set_of(...)
    local set = {}
    for _, kind in ipairs({ ... }) do set[kind] = true end
    return set
end

-- Kinds unknown to this Nonet are left to a newer one.
function methods.due(now, ...)
    local found, kinds = {}, set_of(...)
    enter(me, name, lease)
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', base .. 'due', '-inf', now)) do
        local record = read(member, base .. 'due')
        if record and kinds[record.kind] then
            if record.holder ~= me and not is_held(record.holder) then set_holder(record, me) end
            if record.holder == me then found[#found + 1] = record end
        end
    end
    -- Redis orders records with equal times by their members.
    table.sort(found, function(one, other)
        local sooner, later = tonumber(one.due), tonumber(other.due)
        return sooner < later or sooner == later and tonumber(one.n) < tonumber(other.n)
    end)
    return answer(found)
end

-- Returns the upcoming work: the time of the next record of these kinds that this gateway or none holds, then owners with the
-- number of their unheld notices.
function methods.agenda(...)
    if redis.call('EXISTS', base .. 'number') == 0 then return false end
    local next, at, kinds = '', 0, set_of(...)
    while next == '' and select('#', ...) > 0 do
        local some = redis.call('ZRANGE', base .. 'due', at, at + 99, 'WITHSCORES')
        if #some == 0 then break end
        for pair = 1, #some, 2 do
            local found = redis.call('HMGET', base .. 'record:' .. some[pair], 'v', 'holder', 'due', 'kind')
            local is_known = next == '' and found[1] == VERSION and kinds[found[4]]
            if is_known and (found[2] == me or not is_held(found[2])) then next = found[3] end
        end
        at = at + 100
    end
    local counts, list = {}, { next }
    local notices = redis.call('HGETALL', base .. 'notices')
    for pair = 1, #notices, 2 do
        local holder, owner = string.match(notices[pair], '^(%d+):(.*)$')
        if holder and not is_held(holder) then
            counts[owner] = (counts[owner] or 0) + tonumber(notices[pair + 1])
        end
    end
    for owner, count in pairs(counts) do
        list[#list + 1] = owner
        list[#list + 1] = tostring(count)
    end
    return list
end

function methods.claim_free(kind, owner, most)
    local free, most = {}, tonumber(most)
    enter(me, name, lease)
    for _, record in ipairs(all(of(kind, owner))) do
        if #free < most and record.holder ~= me and not is_held(record.holder) then
            set_holder(record, me)
            free[#free + 1] = record
        end
    end
    return answer(free)
end

function methods.free(kind, owner, ...)
    for _, id in ipairs({ ... }) do
        local record = read(member_of(kind, owner, id))
        if record and record.holder == me then set_holder(record, '0') end
    end
    return 0
end

function methods.changes(owner) return redis.call('GET', base .. 'changes:' .. owner) end

function methods.vectors(owner, model)
    local found = {}
    for _, member in ipairs(redis.call('ZRANGE', of('fact', owner), 0, -1)) do
        local values = redis.call('HMGET', base .. 'record:' .. member, 'v', 'id', 'rev', 'model', 'vector')
        if values[1] == VERSION and values[4] == model then found[#found + 1] = { values[2], values[3], values[5] } end
    end
    return found
end

function methods.put_vectors(owner, model, ...)
    local vectors = { ... }
    for at = 1, #vectors, 3 do
        local record = unchanged('fact', owner, vectors[at], vectors[at + 1])
        if record then
            redis.call('HSET', base .. 'record:' .. record.member, 'model', model, 'vector', vectors[at + 2])
        end
    end
    return 0
end

-- Postpones the expiry of the records of these kinds, as long as a gateway runs.
function methods.renew(...)
    for _, key in ipairs({ 'number', 'due', 'notices' }) do last(base .. key, LIFE) end
    for _, kind in ipairs({ ... }) do
        last(base .. 'kind:' .. kind, LIFE)
        for _, member in ipairs(redis.call('ZRANGE', base .. 'kind:' .. kind, 0, -1)) do
            last(base .. 'record:' .. member, LIFE)
            local owner = redis.call('HGET', base .. 'record:' .. member, 'owner')
            if owner then
                last(of(kind, owner), LIFE)
                if kind == 'fact' then last(base .. 'changes:' .. owner, LIFE) end
            end
        end
    end
    return 0
end

return methods[ARGV[1]](unpack(ARGV, 6))
