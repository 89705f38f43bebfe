-- Trusted definitions of servers, and waiting ones. The first argument is the method; the next four are common to every
-- method: this gateway's number, its name, how long its lease lasts, and how far its clock is ahead.
--
-- pins:of:SERVER      pins as JSON, by KIND:NAME; `by` is the gateway that listed the waiting definition
-- pins:texts:SERVER   texts of definitions, by KIND:NAME:HASH
-- pins:bytes          bytes of these texts, by server
-- pins:waiting        SERVER, KIND and NAME of waiting pins, separated by zero bytes, in order
-- pins:servers        the servers
-- pins:version        a number that grows with every change of a pin

local LIFE = 400 * 24 * 3600 * 1000
local me, name, lease = ARGV[2], ARGV[3], ARGV[4]

local function of(server) return base .. 'pins:of:' .. server end
local function texts(server) return base .. 'pins:texts:' .. server end

local function last_all(server)
    for _, key in ipairs({ of(server), texts(server), base .. 'pins:bytes', base .. 'pins:waiting', base .. 'pins:servers', base .. 'pins:version' }) do
        last(key, LIFE)
    end
end

-- Returns the pin of a field, and whether it is a newer Nonet's.
local function read(server, field)
    local text = redis.call('HGET', of(server), field)
    if not text then return nil, false end
    local is_json, pin = pcall(cjson.decode, text)
    if not is_json or type(pin) ~= 'table' then return nil, false end
    if pin.v ~= 1 then return nil, true end
    return pin, false
end

local function write(server, kind, named, pin)
    pin.v = 1
    redis.call('HSET', of(server), kind .. ':' .. named, cjson.encode(pin))
    local member = table.concat({ server, kind, named }, '\0')
    if pin.waiting then
        redis.call('ZADD', base .. 'pins:waiting', 0, member)
    else
        redis.call('ZREM', base .. 'pins:waiting', member)
    end
end

-- Drops a text that a pin no longer uses.
local function drop_text(server, field, hash, pin)
    if not hash or hash == pin.trusted or hash == pin.waiting then return end
    local bytes = redis.call('HSTRLEN', texts(server), field .. ':' .. hash)
    if redis.call('HDEL', texts(server), field .. ':' .. hash) == 1 then
        redis.call('HINCRBY', base .. 'pins:bytes', server, -bytes)
    end
end

-- After an empty Redis restarts, no number recurs.
local function changed()
    local clock = redis.call('TIME')
    local before = tonumber(redis.call('GET', base .. 'pins:version') or '') or 0
    local version = math.max(before + 1, clock[1] * 1000000 + clock[2])
    redis.call('SET', base .. 'pins:version', string.format('%.0f', version), 'PX', LIFE)
end

local methods = {}

-- Stores texts, each after its field and its hash, as long as all of a server's texts fit.
function methods.put_texts(server, most, ...)
    local all = { ... }
    local bytes = tonumber(redis.call('HGET', base .. 'pins:bytes', server) or '') or 0
    for at = 1, #all, 3 do
        local field, text = all[at] .. ':' .. all[at + 1], all[at + 2]
        if bytes + #text <= tonumber(most) and redis.call('HSETNX', texts(server), field, text) == 1 then
            bytes = redis.call('HINCRBY', base .. 'pins:bytes', server, #text)
        end
    end
    redis.call('SADD', base .. 'pins:servers', server)
    last_all(server)
    return 0
end

-- The steps, as `PinStep` has them.
local steps = {}

function steps.first(pin, hash, now)
    if not pin then return { trusted = hash, by_user = false, since = now, told = false } end
end

function steps.wait(pin, hash, now)
    if pin and pin.waiting == hash then return nil end
    pin = pin or { by_user = false }
    pin.waiting, pin.since, pin.told, pin.by = hash, now, false, me
    return pin
end

function steps.vouch(_, hash, now)
    return { trusted = hash, by_user = false, since = now, told = false }
end

-- A definition that another gateway lists keeps waiting: otherwise two gateways with different servers would change the pin
-- in turns.
steps['return'] = function(pin)
    if not pin or not pin.waiting or pin.by ~= me and is_held(pin.by or '0') then return nil end
    pin.waiting, pin.told, pin.by = nil, false, nil
    return pin
end

-- Changes a server's pins, all at once.
function methods.write(server, now, writes)
    enter(me, name, lease)
    local is_changed = false
    for _, one in ipairs(cjson.decode(writes)) do
        local field = one.kind .. ':' .. one.name
        local pin, is_newer = read(server, field)
        if not is_newer then
            local trusted, waiting = pin and pin.trusted, pin and pin.waiting
            local next_pin = steps[one.to](pin, one.hash, now)
            if next_pin then
                write(server, one.kind, one.name, next_pin)
                is_changed = true
            end
            for _, hash in ipairs({ trusted or '', waiting or '', one.hash or '' }) do
                if hash ~= '' then drop_text(server, field, hash, next_pin or pin or {}) end
            end
        end
    end
    if is_changed then
        redis.call('SADD', base .. 'pins:servers', server)
        changed()
        last_all(server)
    end
    return 0
end

-- Trusts waiting definitions that are still as the user has seen them. Returns how many were.
function methods.trust(now, seen)
    local count = 0
    for _, one in ipairs(cjson.decode(seen)) do
        local field = one.kind .. ':' .. one.name
        local pin = read(one.server, field)
        if pin and pin.waiting and pin.waiting == one.waiting then
            local before = pin.trusted
            pin.trusted, pin.by_user, pin.since, pin.told = pin.waiting, true, now, false
            pin.waiting, pin.by = nil, nil
            write(one.server, one.kind, one.name, pin)
            drop_text(one.server, field, before, pin)
            last_all(one.server)
            count = count + 1
        end
    end
    if count > 0 then changed() end
    return count
end

-- Notes that waiting changes were reported.
function methods.told(seen)
    local count = 0
    for _, one in ipairs(cjson.decode(seen)) do
        local pin = read(one.server, one.kind .. ':' .. one.name)
        if pin and pin.waiting and pin.waiting == one.waiting then
            pin.told = true
            write(one.server, one.kind, one.name, pin)
            count = count + 1
        end
    end
    return count
end

-- Postpones the expiry of everything, as long as a gateway runs.
function methods.renew()
    for _, server in ipairs(redis.call('SMEMBERS', base .. 'pins:servers')) do last_all(server) end
    return 0
end

return methods[ARGV[1]](unpack(ARGV, 6))
