#!/usr/bin/env python3
"""How far one Redis carries replicas of Nonet: a model, and the measurements that it rests on.

    python3 benches/cluster_model.py                    the table of docs/cluster.md, from the costs below
    python3 benches/cluster_model.py --measure PORT     measures those costs on a Redis of your own at 127.0.0.1:PORT
    python3 benches/cluster_model.py --watch PORT 3     counts for 30 s what 3 idle replicas do there, beside the model

`--measure` runs the scripts of src/store/redis/*.lua with made-up replicas under the prefix `nonet-model`, and removes what it
put. `--watch` only reads `INFO commandstats`. Standard library only; the same input gives the same output, but for what is measured.
"""

import argparse
import bisect
import hashlib
import heapq
import json
import pathlib
import socket
import time

SCRIPTS = pathlib.Path(__file__).parent.parent / "src" / "store" / "redis"
BASE = "nonet-model:{nonet-model}:"

# The source's values (presence.rs, replicas.rs, link.rs, agenda.rs, carried.rs), in seconds.
BEAT, LEASE, PATIENCE, AGENDA, TOUCH = 3, 10, 1, 1, 60
TOUCHED_AT_ONCE = 500

# The output of `--measure`: microseconds of Redis per call of a method, by the number that the cost grows with.
LOOK_US = {3: 23, 100: 210, 1_000: 2_719, 10_000: 38_724}          # by replicas
AGENDA_US = {0: 32, 100: 414, 1_000: 4_655, 10_000: 60_367}       # by errands that other replicas hold
JOIN_US = 22
TOUCH_US = 3.9                                                     # per session
# The size of a replica's announcement, and of a session with one plain client, in bytes.
TOLD_BYTES = 190
SESSION_REDIS_BYTES, SESSION_REPLICA_BYTES = 667, 105_000


def between(table, at):
    """Reads a table at a point between its rows, and beyond the last row on the line through the last two."""
    rows = sorted(table)
    right = min(max(bisect.bisect_left(rows, at), 1), len(rows) - 1)
    low, high = rows[right - 1], rows[right]
    return table[low] + (table[high] - table[low]) * (at - low) / (high - low)


class Load:
    """What so many replicas ask of one Redis each second, while no client does anything."""

    def __init__(self, replicas, sessions=0, errands=0):
        self.replicas = replicas
        self.look_us = between(LOOK_US, replicas)
        # A replica reads due items in order of time until it finds one of its own: of K among N, after N / (K + 1).
        self.agenda_us = between(AGENDA_US, errands / (errands / replicas + 1))
        beats, agendas = replicas / BEAT, replicas / AGENDA
        of_each = sessions / replicas
        touches = replicas * -(-of_each // TOUCHED_AT_ONCE) / TOUCH
        # By the names of `INFO commandstats`: a method counts as one EVALSHA, whatever it calls within Redis.
        self.commands = {
            "evalsha": 2 * beats + agendas + touches,
            "exists": beats * replicas + agendas,
            "hgetall": beats,
            "hset": beats,
            "set": 2 * beats + beats,  # of the join, and of the lease's own renewal
            "get": beats,
            "pttl": 2 * beats,
        }
        self.busy = 1e-6 * (
            beats * (self.look_us + JOIN_US) + agendas * self.agenda_us + sessions / TOUCH * TOUCH_US
        )
        self.sent_bytes = beats * replicas * TOLD_BYTES
        self.connections = replicas * (replicas - 1)

    def simulate(self, seconds=30):
        """Beats and agendas of replicas in turn at a Redis that does one thing at a time. Returns the share of beats that no answer
        came to in time, and the replicas that others took for dead at any moment."""
        # The golden ratio spreads the start times evenly, whatever their number.
        phases = [(index * 0.6180339887) % 1 for index in range(self.replicas)]
        queue = [(phase * BEAT, index, True) for index, phase in enumerate(phases)]
        queue += [(phase * AGENDA, index, False) for index, phase in enumerate(phases)]
        heapq.heapify(queue)
        free, beats, late = 0.0, 0, 0
        joined, dead = [0.0] * self.replicas, set()
        while queue and queue[0][0] < seconds:
            at, index, is_beat = heapq.heappop(queue)
            work = (self.look_us + JOIN_US if is_beat else self.agenda_us) * 1e-6
            begins = max(free, at)
            heapq.heappush(queue, (at + (BEAT if is_beat else AGENDA), index, is_beat))
            if begins - at > PATIENCE:
                # The replica no longer waits for it, but Redis runs it all the same: most of the cost remains.
                late += is_beat
                beats += is_beat
                free = begins + work
                continue
            free = begins + work
            if is_beat:
                beats += 1
                if free - joined[index] > LEASE:
                    dead.add(index)
                joined[index] = free
        dead.update(index for index, last in enumerate(joined) if seconds - last > LEASE)
        return late / max(beats, 1), len(dead)


def table():
    print("| replicas | scripts/s | sub-commands/s | Redis busy | sent by Redis | connections between replicas |"
          " beats without an answer | replicas taken for dead |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for replicas in (3, 100, 300, 1_000, 10_000):
        load = Load(replicas)
        late, dead = load.simulate()
        inner = sum(load.commands.values()) - load.commands["evalsha"]
        print(f"| {replicas:,} | {load.commands['evalsha']:,.0f} | {inner:,.0f} | {load.busy:,.1%} | {size(load.sent_bytes)}/s |"
              f" {load.connections:,} | {late:.0%} | {dead:,} |")
    print("\nThe same with 3 errands and 1,000 sessions for each replica:\n")
    print("| replicas | errands | sessions | Redis busy | of that: look | agenda | touch | records of sessions in Redis |"
          " sessions in a replica |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for replicas in (3, 100, 300, 1_000, 10_000):
        sessions, errands = 1_000 * replicas, 3 * replicas
        load = Load(replicas, sessions, errands)
        parts = [replicas / BEAT * load.look_us, replicas / AGENDA * load.agenda_us, sessions / TOUCH * TOUCH_US]
        shares = " | ".join(f"{part * 1e-6:,.1%}" for part in parts)
        print(f"| {replicas:,} | {errands:,} | {sessions:,} | {load.busy:,.1%} | {shares} | {size(sessions * SESSION_REDIS_BYTES)} |"
              f" {size(1_000 * SESSION_REPLICA_BYTES)} |")
    for target in (0.5, 1.0):
        idle = next(n for n in range(3, 20_000) if Load(n + 1).busy > target)
        used = next(n for n in range(3, 20_000) if Load(n + 1, 1_000 * n, 3 * n).busy > target)
        print(f"\nRedis is {target:.0%} busy with {idle} idle replicas, or with {used} as in the second table.", end="")
    print()


def size(count):
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1_000
    return f"{count:,.1f} TB"


class Redis:
    """As much of the protocol as is needed here."""

    def __init__(self, port):
        self.stream = socket.create_connection(("127.0.0.1", port), 60).makefile("rwb")

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.stream.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))

    def call(self, *words):
        self.send(*words)
        self.stream.flush()
        return self.read()

    def read(self):
        line = self.stream.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.stream.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        return rest

    def all(self, commands):
        for command in commands:
            self.send(*command)
        self.stream.flush()
        for _ in commands:
            self.read()

    def stats(self):
        lines = self.call("INFO", "commandstats").decode().splitlines()
        found = {}
        for line in lines:
            if line.startswith("cmdstat_"):
                name, values = line[8:].split(":")
                values = dict(value.split("=") for value in values.split(","))
                found[name] = (int(values["calls"]), int(values["usec"]))
        return found

    def script(self, name):
        text = "\n".join((SCRIPTS / file).read_text() for file in ("common.lua", name))
        self.call("SCRIPT", "LOAD", text)
        return hashlib.sha1(text.encode()).hexdigest()

    def clear(self):
        cursor = b"0"
        while True:
            cursor, keys = self.call("SCAN", cursor, "MATCH", "nonet-model:*", "COUNT", 1_000)
            if keys:
                self.call("UNLINK", *keys)
            if cursor == b"0":
                return


def measure(port):
    redis = Redis(port)
    replicas, records = redis.script("replicas.lua"), redis.script("records.lua")

    def timed(times, *words):
        """The best of three runs: microseconds of Redis for each call, microseconds until its answer was read; and the answer."""
        best = []
        for _ in range(3):
            before, began = redis.stats()["evalsha"], time.monotonic()
            for _ in range(times):
                answer = redis.call("EVALSHA", *words)
            took = (time.monotonic() - began) / times * 1e6
            after = redis.stats()["evalsha"]
            best.append(((after[1] - before[1]) / (after[0] - before[0]), took))
        return *min(best), answer

    def told(number):
        return json.dumps({
            "number": number, "name": f"nonet-5f6d8c7b9-{number:05}", "address": f"http://10.{number >> 16}.{number >> 8 & 255}."
            f"{number & 255}:8931", "version": "0.1.0", "config": "0" * 64, "leaving": False,
        }, separators=(",", ":"))

    redis.clear()
    # One script call precedes the counting.
    redis.call("EVALSHA", replicas, 1, BASE, "look", 1)
    for count in (3, 100, 1_000, 10_000):
        redis.clear()
        for first in range(1, count + 1, 500):
            some = range(first, min(first + 500, count + 1))
            redis.all([("HSET", BASE + "replicas", number, told(number)) for number in some])
            redis.all([("SET", f"{BASE}holder:{number}", "name", "PX", 600_000) for number in some])
        look, took, answer = timed(max(5, 2_000 // count), replicas, 1, BASE, "look", 1)
        assert len(answer) == count
        join, _, _ = timed(50, replicas, 1, BASE, "join", 1, "name", 600_000, told(1), "secret")
        sent = sum(map(len, answer)) / count
        print(f"look of {count:>6,} replicas: {look:>9,.0f} us of Redis, {took:>9,.0f} us until it was read, {sent:.0f} bytes each;"
              f" join: {join:.0f} us")
    body = json.dumps({"profile": None, "initialize": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {
        "name": "measure", "version": "1"}}, "log_level": None, "subscriptions": [], "approved": [], "loaded": [],
        "instructed": [], "notices": []}, separators=(",", ":"))
    ids = [f"{number:032x}-0000001-0123456789abcdef01234567" for number in range(TOUCHED_AT_ONCE)]
    before = redis.stats()["evalsha"]
    for session in ids:
        redis.call("EVALSHA", replicas, 1, BASE, "put_session", 1, session, body, 3_600_000)
    after = redis.stats()["evalsha"]
    print(f"put_session: {(after[1] - before[1]) / len(ids):.0f} us; record: {len(body)} bytes, in Redis"
          f" {redis.call('MEMORY', 'USAGE', BASE + 'session:' + ids[0], 'SAMPLES', 0)}")
    touch, _, _ = timed(5, replicas, 1, BASE, "touch_sessions", 1, 3_600_000, *ids)
    print(f"touch_sessions of {len(ids)}: {touch:.0f} us, {touch / len(ids):.1f} each")
    for count in (0, 100, 1_000, 10_000):
        redis.clear()
        redis.call("SET", BASE + "number", 1)
        for number in range(count):
            member, holder = f"schedule:1:a:{number}", number // 3 + 2
            redis.send("HSET", f"{BASE}record:{member}", "v", 1, "holder", holder, "due", 9_999_999_999_999)
            redis.send("ZADD", BASE + "due", 9_999_999_999_999, member)
            redis.send("SET", f"{BASE}holder:{holder}", "name", "PX", 600_000)
            if number % 200 == 199 or number == count - 1:
                redis.stream.flush()
                for _ in range(3 * (number % 200 + 1)):
                    redis.read()
        agenda, _, _ = timed(max(5, 2_000 // (count + 10)), records, 1, BASE, "agenda", 1, "name", 10_000, 0)
        print(f"agenda with {count:>6,} errands of others: {agenda:>9,.0f} us")
    redis.clear()


def watch(port, replicas, seconds=30):
    redis = Redis(port)
    before = redis.stats()
    time.sleep(seconds)
    after = redis.stats()
    load = Load(replicas)
    print("| command | counted/s | model/s |\n|---|---:|---:|")
    for name, modelled in load.commands.items():
        counted = (after.get(name, (0, 0))[0] - before.get(name, (0, 0))[0]) / seconds
        print(f"| `{name}` | {counted:.2f} | {modelled:.2f} |")
    spent = (after["evalsha"][1] - before["evalsha"][1]) / seconds * 1e-6
    print(f"| time in scripts | {spent:.3%} | {load.busy:.3%} |")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--measure", metavar="PORT", type=int)
    options.add_argument("--watch", metavar=("PORT", "REPLICAS"), type=int, nargs=2)
    given = options.parse_args()
    if given.measure:
        measure(given.measure)
    elif given.watch:
        watch(*given.watch)
    else:
        table()
