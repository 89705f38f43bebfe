"""Twenty tasks whose next call depends on the last answer, each done twice: by calls and `run_parallel`, and by a script.

What is called, and why, is the same both ways; a model that makes the calls itself reads what comes back, and puts calls
that do not depend on each other into one `run_parallel`. As in sessions.py, only names that the session has shown are used.
"""

import csv
import http.server
import io
import json
import re
import sqlite3
import threading
import time
import urllib.parse

from client import compact, need
from sessions import READ, WRITE, task

RUN = "gateway.run_script"
LIST = ["filesystem.list_directory", "filesystem.directory_tree"]


def both(name, alone=None):
    """Takes a function as two tasks: `script` is None in the first, and runs a script in the second."""

    def take(function):
        for kind in ("calls", "script"):

            def run(s, place, kind=kind):
                script = (lambda text, **uses: scripted(s, text, uses)) if kind == "script" else None
                folder = place.path(f"work/{function.__name__}-{kind}")
                folder.mkdir()
                # The servers start while the user writes.
                time.sleep(2)
                function(s, place, folder, script)

            run.__name__ = f"{function.__name__}_{kind}"
            task(name, alone, kind=kind)(run)
        return function

    return take


def scripted(s, text, uses):
    """Runs a script. `uses` are the params of the tools in it, by the name of the tool with `__` for the dot."""
    # The instructions say how to call it; what scripts have beside JavaScript is in its definition.
    need(f"{RUN} with" in s.instructions and '"script"' in s.instructions, "nothing tells how to run a script")
    s.known.setdefault(RUN, '"script"')
    if re.search(r"\b(all|sleep|search|describe|result|ask|call)\(|\b(format|parse)\.", text):
        s.describe(RUN)
    for server, tool in re.findall(r"tools\.(\w+)\.(\w+)", text):
        s.prepare(f"{server}.{tool}", dict.fromkeys(uses.get(f"{server}__{tool}", [])))
    return s.do(RUN, {"script": re.sub(r"^ {8}", "", text.strip("\n"), flags=re.M)}).json


def in_parallel(s, name, params):
    """One call of the tool for each params, all at once. Gives the results."""
    actions = [{"id": f"r{n}", "name": name, "params": one, "show": True} for n, one in enumerate(params)]
    return [entry["result"] for entry in s.parallel(*actions).values()]


# --- a service with pages -------------------------------------------------------------------------


ORDERS = [{"id": n, "customer": f"C{n * 7 % 23}", "total": n * 37 % 211, "state": "paid" if n % 5 else "open"} for n in range(230)]
CUSTOMERS = [{"id": f"C{n}", "name": f"Customer {n}", "city": ("Bonn", "Kiel", "Ulm")[n % 3]} for n in range(23)]
CONTACTS = [{"name": f"Person {n}", "email": f"person{n % 61}@example.com", "seen": f"2026-{1 + n % 11:02}-05"} for n in range(120)]
ISSUES = {project: [{"no": n, "state": "open" if n % 3 else "closed"} for n in range(count)] for project, count in
          {"api": 34, "web": 12, "cli": 25, "docs": 8, "infra": 41}.items()}
GROUPS = {"": ["tools", "garden", "home"], "tools": ["saws", "drills"], "drills": ["hammer drills", "cordless drills"],
          "cordless drills": ["12 volt", "18 volt"], "garden": ["hoses"], "home": ["lamps", "beds"], "lamps": ["desk lamps"]}
LINKS = {f"p{n}": [f"p{(n * 3 + 1) % 26}", f"p{(n * 5 + 2) % 26}"] for n in range(26)}
CHAIN = [f"step-{n * 5 % 11}" for n in range(11)]
FIRST_BAD = 613


def page(items, cursor, size):
    begin = int(cursor or 0)
    following = begin + size
    return {"items": items[begin:following], "next": str(following) if following < len(items) else None}


class Office(http.server.BaseHTTPRequestHandler):
    """A service of orders, builds, bookings and pages. `memory` is what it remembers."""

    memory = {}

    def do_GET(self):
        where = urllib.parse.urlsplit(self.path)
        asked = {key: values[0] for key, values in urllib.parse.parse_qs(where.query).items()}
        found = self.answer(where.path.strip("/"), asked)
        body = json.dumps(found if found is not None else {"error": "there is none"}).encode()
        self.send_response(200 if found is not None else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def answer(self, path, asked):
        memory, cursor = self.memory, asked.get("cursor")
        match path:
            case "orders":
                return page(ORDERS, cursor, 20)
            case "customers":
                return page(CUSTOMERS, cursor, 5)
            case "contacts":
                return page(CONTACTS, cursor, 12)
            case "issues":
                return page(ISSUES.get(asked["project"], []), cursor, 10)
            case "groups":
                return {"groups": GROUPS.get(asked.get("parent", ""), [])}
            case "article":
                return {"title": f"Article {asked['id']}", "links": LINKS[asked["id"]]} if asked["id"] in LINKS else None
            case "checklist":
                at = CHAIN.index(asked["step"])
                return {"does": f"Do number {at}.", "next": CHAIN[at + 1] if at + 1 < len(CHAIN) else None}
            case "build":
                return {"build": int(asked["number"]), "passed": int(asked["number"]) < FIRST_BAD}
            case "export":
                memory["export"] = 0
                return {"id": "e1"}
            case "export/state":
                memory["export"] += 1
                return {"state": "done", "rows": 4711} if memory["export"] > 7 else {"state": "running"}
            case "demand":
                return {"demand": max(0, 900 - 13 * int(asked["price"]))}
            case "price" | "archive" | "market":
                sold = {"price": 2, "archive": 3, "market": 5}[path]
                number = int(asked["item"])
                return {"item": number, "net": number * sold} if number % sold == 0 else None
            case "book":
                if asked["day"] == "2026-12-08":
                    return None
                memory.setdefault("booked", set()).add(asked["day"])
                return {"booking": asked["day"]}
            case "cancel":
                memory["booked"].discard(asked["booking"])
                return {"cancelled": asked["booking"]}
        return None

    def log_message(self, *_):
        pass


ENDPOINTS = {
    "list_orders": ("orders", "Orders, a page at a time: `items` and the cursor of the `next` page", ["cursor?"]),
    "list_customers": ("customers", "Customers, a page at a time: `items` and the cursor of the `next` page", ["cursor?"]),
    "list_contacts": ("contacts", "Contacts, a page at a time: `items` and the cursor of the `next` page", ["cursor?"]),
    "list_issues": ("issues", "Issues of a project, a page at a time: `items` and the cursor of the `next` page", ["project", "cursor?"]),
    "list_groups": ("groups", "The groups of goods inside of a group; without `parent`, the outermost", ["parent?"]),
    "read_article": ("article", "An article of the handbook: its title and its links", ["id"]),
    "read_checklist": ("checklist", "One step of a checklist and the `next` one", ["step"]),
    "get_build": ("build", "Whether a build passed", ["number"]),
    "start_export": ("export", "Starts an export of all data", []),
    "get_export": ("export/state", "The `state` of an export: running, or done", ["id"]),
    "forecast_demand": ("demand", "How many pieces are sold at a price", ["price"]),
    "get_price": ("price", "The net price of an item; 404 without one", ["item"]),
    "get_archived_price": ("archive", "The net price of an item in the archive; 404 without one", ["item"]),
    "get_market_price": ("market", "The net price of an item on the market; 404 without one", ["item"]),
    "book_room": ("book", "Books the large room on a day; 404 if it is taken", ["day"]),
    "cancel_booking": ("cancel", "Cancels a booking of the room", ["booking"]),
}


def office(place):
    """Files, and the service, which a thread of this process serves."""
    handler = type("Busy", (Office,), {"memory": {}})
    service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    place.office = handler.memory
    tables = [f'\n[servers.office]\ndescription = "Orders, customers, builds and the handbook of the office"\n'
              f'base_url = "http://127.0.0.1:{service.server_address[1]}"\n']
    for name, (path, about, params) in ENDPOINTS.items():
        method = "POST" if name in ("start_export", "book_room", "cancel_booking") else "GET"
        keys = [param.rstrip("?") for param in params]
        schema = {"type": "object", "properties": {key: {"type": "string"} for key in keys},
                  "required": [param for param in params if not param.endswith("?")]}
        tables.append(f"[servers.office.endpoints.{name}]\ndescription = {json.dumps(about)}\nmethod = \"{method}\"\n"
                      f"path = \"/{path}\"\nquery = {json.dumps(keys)}\ninput_schema = {toml(schema)}\n")
    return place.server("filesystem") + "\n".join(tables)


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def pages(s, name, **more):
    """Every page of a list, read by the model."""
    items, cursor = [], None
    while True:
        found = s.do(name, {**more, **({"cursor": cursor} if cursor else {})}).json
        items += found["items"]
        cursor = found["next"]
        if not cursor:
            return items


# --- pages ----------------------------------------------------------------------------------------


@both("A sum over all pages", alone=office)
def open_orders(s, place, folder, script):
    """What do the open orders come to?"""
    orders = s.find("office.list_orders", "list orders")
    if script:
        total = script("""
        let [total, cursor] = [0, undefined];
        do {
          const page = await tools.office.list_orders(cursor ? { cursor } : {});
          for (const order of page.items) if (order.state === "open") total += order.total;
          cursor = page.next;
        } while (cursor);
        return { total };
        """, office__list_orders=["cursor"])["output"]["total"]
    else:
        total = sum(order["total"] for order in pages(s, orders) if order["state"] == "open")
    need(total == sum(order["total"] for order in ORDERS if order["state"] == "open"), f"{total}")


@both("Two paged lists joined", alone=office)
def by_city(s, place, folder, script):
    """What did each city order? As a table in BY-CITY.md."""
    s.find("office.list_orders", "list orders")
    s.find("office.list_customers", "list customers")
    write = s.find(WRITE, "write a text file")
    target = folder / "BY-CITY.md"
    if script:
        script(f"""
        const every = async (list) => {{
          const items = [];
          for (let cursor; cursor !== null;) {{
            const page = await list(cursor ? {{ cursor }} : {{}});
            items.push(...page.items);
            cursor = page.next;
          }}
          return items;
        }};
        const [orders, customers] = await Promise.all([every(tools.office.list_orders), every(tools.office.list_customers)]);
        const city = new Map(customers.map((one) => [one.id, one.city]));
        const sums = {{}};
        for (const order of orders) sums[city.get(order.customer)] = (sums[city.get(order.customer)] ?? 0) + order.total;
        const rows = Object.entries(sums).sort().map(([city, total]) => ({{ city, total }}));
        await tools.{write}({{ path: "{target}", content: format.markdown(rows) }});
        return rows.length;
        """, **{"office__list_orders": ["cursor"], "office__list_customers": ["cursor"], write.replace(".", "__"): ["path", "content"]})
    else:
        city = {one["id"]: one["city"] for one in pages(s, "office.list_customers")}
        sums = {}
        for order in pages(s, "office.list_orders"):
            sums[city[order["customer"]]] = sums.get(city[order["customer"]], 0) + order["total"]
        table = "| city | total |\n| --- | --- |\n" + "".join(f"| {name} | {total} |\n" for name, total in sorted(sums.items()))
        s.do(write, {"path": str(target), "content": table})
    bonn = sum(order["total"] for order in ORDERS if int(order["customer"][1:]) % 3 == 0)
    need(re.search(rf"\| *Bonn *\| *{bonn} *\|", target.read_text()), target.read_text())


@both("Contacts without doubles", alone=office)
def contacts(s, place, folder, script):
    """Write all contacts to contacts.csv, each e-mail address once, with the day it was last seen."""
    s.find("office.list_contacts", "list contacts")
    write = s.find(WRITE, "write a text file")
    target = folder / "contacts.csv"
    if script:
        script(f"""
        const last = new Map();
        for (let cursor; cursor !== null;) {{
          const page = await tools.office.list_contacts(cursor ? {{ cursor }} : {{}});
          for (const {{ email, seen }} of page.items) if (!(last.get(email) > seen)) last.set(email, seen);
          cursor = page.next;
        }}
        const rows = [...last].map(([email, seen]) => ({{ email, seen }}));
        await tools.{write}({{ path: "{target}", content: format.csv(rows) }});
        return rows.length;
        """, **{"office__list_contacts": ["cursor"], write.replace(".", "__"): ["path", "content"]})
    else:
        last = {}
        for one in pages(s, "office.list_contacts"):
            last[one["email"]] = max(one["seen"], last.get(one["email"], ""))
        s.do(write, {"path": str(target), "content": "email,seen\n" + "".join(f"{email},{seen}\n" for email, seen in last.items())})
    found = dict(csv.reader(io.StringIO(target.read_text())))
    wanted = {one["email"]: max(other["seen"] for other in CONTACTS if other["email"] == one["email"]) for one in CONTACTS}
    need(found == {"email": "seen", **wanted}, target.read_text()[:300])


@both("Pages of several lists", alone=office)
def issues(s, place, folder, script):
    """How many open issues have the projects api, web, cli, docs and infra?"""
    name = s.find("office.list_issues", "list issues of a project")
    if script:
        counts = script("""
        const count = async (project) => {
          let open = 0;
          for (let cursor; cursor !== null;) {
            const page = await tools.office.list_issues(cursor ? { project, cursor } : { project });
            open += page.items.filter((issue) => issue.state === "open").length;
            cursor = page.next;
          }
          return [project, open];
        };
        return Object.fromEntries(await all(["api", "web", "cli", "docs", "infra"], count));
        """, office__list_issues=["project", "cursor"])["output"]
    else:
        counts, left = dict.fromkeys(ISSUES, 0), [{"project": project} for project in ISSUES]
        while left:
            found = in_parallel(s, name, left)
            for params, page_ in zip(left, found):
                counts[params["project"]] += sum(issue["state"] == "open" for issue in page_["items"])
            left = [{**params, "cursor": page_["next"]} for params, page_ in zip(left, found) if page_["next"]]
    need(counts == {project: sum(issue["state"] == "open" for issue in all_) for project, all_ in ISSUES.items()}, f"{counts}")


# --- the next call is in the last answer ----------------------------------------------------------


@both("Wait until it is done", alone=office)
def export(s, place, folder, script):
    """Export all data. How many rows were there?"""
    start = s.find("office.start_export", "start an export of the data")
    state = s.find("office.get_export", "state of an export")
    if script:
        rows = script("""
        const { id } = await tools.office.start_export();
        for (;;) {
          const { state, rows } = await tools.office.get_export({ id });
          if (state === "done") return { rows };
          await sleep(100);
        }
        """, office__get_export=["id"])["output"]["rows"]
    else:
        number, rows = s.do(start).json["id"], None
        while rows is None:
            rows = s.do(state, {"id": number}).json.get("rows")
    need(rows == 4711, f"{rows}")


@both("A tree, level by level", alone=office)
def groups(s, place, folder, script):
    """Which groups of goods have no groups inside?"""
    name = s.find("office.list_groups", "list groups of goods")
    if script:
        leaves = script("""
        const leaves = async (parent) => {
          const { groups } = await tools.office.list_groups(parent ? { parent } : {});
          return groups.length ? (await all(groups, leaves)).flat() : [parent];
        };
        return await leaves();
        """, office__list_groups=["parent"])["output"]
    else:
        leaves, level = [], s.do(name).json["groups"]
        while level:
            inner = [found["groups"] for found in in_parallel(s, name, [{"parent": group} for group in level])]
            leaves += [group for group, inside in zip(level, inner) if not inside]
            level = [group for inside in inner for group in inside]
    inside = [group for groups_ in GROUPS.values() for group in groups_]
    need(set(leaves) == {group for group in inside if group not in GROUPS}, f"{leaves}")


@both("Which build broke it", alone=office)
def bisect(s, place, folder, script):
    """Build 1 passed, build 1000 does not. Which one was the first that fails?"""
    name = s.find("office.get_build", "did a build pass")
    if script:
        first = script("""
        let [good, bad] = [1, 1000];
        while (bad - good > 1) {
          const number = Math.floor((good + bad) / 2);
          if ((await tools.office.get_build({ number: String(number) })).passed) good = number;
          else bad = number;
        }
        return { first: bad };
        """, office__get_build=["number"])["output"]["first"]
    else:
        good, first = 1, 1000
        while first - good > 1:
            number = (good + first) // 2
            if s.do(name, {"number": str(number)}).json["passed"]:
                good = number
            else:
                first = number
    need(first == FIRST_BAD, f"{first}")


@both("A chain of steps", alone=office)
def checklist(s, place, folder, script):
    """Write the checklist that begins with step-0 to CHECKLIST.txt, a line for each step."""
    name = s.find("office.read_checklist", "read a checklist")
    write = s.find(WRITE, "write a text file")
    target = folder / "CHECKLIST.txt"
    if script:
        script(f"""
        const lines = [];
        for (let step = "step-0"; step;) {{
          const one = await tools.office.read_checklist({{ step }});
          lines.push(one.does);
          step = one.next;
        }}
        await tools.{write}({{ path: "{target}", content: lines.join("\\n") + "\\n" }});
        """, **{"office__read_checklist": ["step"], write.replace(".", "__"): ["path", "content"]})
    else:
        lines, step = [], "step-0"
        while step:
            one = s.do(name, {"step": step}).json
            lines.append(one["does"] + "\n")
            step = one["next"]
        s.do(write, {"path": str(target), "content": "".join(lines)})
    need(target.read_text() == "".join(f"Do number {n}.\n" for n in range(len(CHAIN))), target.read_text())


@both("A crawl over links", alone=office)
def crawl(s, place, folder, script):
    """Which articles of the handbook can be reached from p0? Name their titles."""
    name = s.find("office.read_article", "read an article of the handbook")
    if script:
        titles = script("""
        const titles = {};
        for (let level = ["p0"]; level.length;) {
          const found = await all(level, (id) => tools.office.read_article({ id }));
          level.forEach((id, n) => (titles[id] = found[n].title));
          level = [...new Set(found.flatMap((one) => one.links))].filter((id) => !(id in titles));
        }
        return Object.values(titles);
        """, office__read_article=["id"])["output"]
    else:
        seen, level = {}, ["p0"]
        while level:
            found = in_parallel(s, name, [{"id": one} for one in level])
            seen |= {one: article["title"] for one, article in zip(level, found)}
            level = sorted({link for article in found for link in article["links"]} - set(seen))
        titles = list(seen.values())
    reached, level = set(), {"p0"}
    while level:
        reached |= level
        level = {link for one in level for link in LINKS[one]} - reached
    need(set(titles) == {f"Article {one}" for one in reached}, f"{titles}")


@both("The right price by trying", alone=office)
def demand(s, place, folder, script):
    """At which lowest price, in steps of 5 from 10, are at most 400 pieces sold?"""
    name = s.find("office.forecast_demand", "how many pieces are sold at a price")
    if script:
        price = script("""
        for (let price = 10; ; price += 5)
          if ((await tools.office.forecast_demand({ price: String(price) })).demand <= 400) return { price };
        """, office__forecast_demand=["price"])["output"]["price"]
    else:
        price = 10
        while s.do(name, {"price": str(price)}).json["demand"] > 400:
            price += 5
    need(price == 40, f"{price}")


# --- what fails -----------------------------------------------------------------------------------


@both("Another source for what is missing", alone=office)
def prices(s, place, folder, script):
    """Net prices of the items 1 to 15: from the price list, else from the archive, else from the market. As prices.json."""
    names = [s.find("office.get_price", "net price of an item"), s.find("office.get_archived_price", "price in the archive"),
             s.find("office.get_market_price", "price on the market")]
    write = s.find(WRITE, "write a text file")
    target = folder / "prices.json"
    if script:
        script(f"""
        const found = {{}};
        const price = async (item) => {{
          for (const source of [tools.office.get_price, tools.office.get_archived_price, tools.office.get_market_price]) {{
            try {{
              found[item] = (await source({{ item }})).net;
              return;
            }} catch (error) {{}}
          }}
        }};
        await all(Array.from({{ length: 15 }}, (_, n) => String(n + 1)), price);
        await tools.{write}({{ path: "{target}", content: JSON.stringify(found) }});
        return found;
        """, **{name.replace(".", "__"): ["item"] for name in names}, **{write.replace(".", "__"): ["path", "content"]})
    else:
        left, found = list(range(1, 16)), {}
        for name in names:
            actions = [{"id": f"i{item}", "name": name, "params": {"item": str(item)}, "show": True} for item in left]
            for item, entry in zip(left, s.graph(*actions).json["results"]):
                if entry["success"]:
                    found[str(item)] = entry["result"]["net"]
            left = [item for item in left if str(item) not in found]
        s.do(write, {"path": str(target), "content": compact(found)})
    wanted = {str(n): n * next(sold for sold in (2, 3, 5) if n % sold == 0) for n in range(1, 16) if n % 2 == 0 or n % 3 == 0 or n % 5 == 0}
    need({key: value for key, value in json.loads(target.read_text()).items()} == wanted, target.read_text())


@both("All or none", alone=office)
def bookings(s, place, folder, script):
    """Book the large room on 2, 4, 8 and 10 December. If one day is taken, cancel the others."""
    book = s.find("office.book_room", "book the large room")
    cancel = s.find("office.cancel_booking", "cancel a booking of the room")
    days = [f"2026-12-{day:02}" for day in (2, 4, 8, 10)]
    place.office.pop("booked", None)
    if script:
        answer = script(f"""
        const booked = [];
        try {{
          for (const day of {compact(days)}) booked.push((await tools.office.book_room({{ day }})).booking);
          return {{ booked }};
        }} catch (error) {{
          for (const booking of booked) await tools.office.cancel_booking({{ booking }});
          return {{ cancelled: booked, why: error.message }};
        }}
        """, office__book_room=["day"], office__cancel_booking=["booking"])["output"]
        need(answer["cancelled"] == days[:2], f"{answer}")
    else:
        for n, day in enumerate(days):
            if s.run(book, {"day": day}).is_error:
                in_parallel(s, cancel, [{"booking": booked} for booked in days[:n]])
                break
    need(place.office.get("booked") == set(), f"{place.office}")


# --- files ----------------------------------------------------------------------------------------


@both("Files that include others", alone=office)
def includes(s, place, folder, script):
    """Join manual.txt with the files that it includes (`include NAME`), and those that they include, to whole.txt."""
    parts = {"manual.txt": ["one.txt", "two.txt"], "one.txt": ["three.txt"], "three.txt": ["four.txt"], "four.txt": ["five.txt"],
             "five.txt": ["six.txt"], "six.txt": ["seven.txt"]}
    for name in ["manual.txt", "one.txt", "two.txt", "three.txt", "four.txt", "five.txt", "six.txt", "seven.txt"]:
        lines = [f"This is {name}.\n" + "It says this and that.\n" * 20] + [f"include {other}\n" for other in parts.get(name, [])]
        (folder / name).write_text("".join(lines))
    read, write = s.find(READ, "read a text file"), s.find(WRITE, "write a text file")
    target = folder / "whole.txt"
    if script:
        script(f"""
        const whole = async (name) => {{
          const text = await tools.{read}({{ path: "{folder}/" + name }});
          const lines = [];
          for (const line of text.split("\\n"))
            lines.push(line.startsWith("include ") ? (await whole(line.slice(8))).trimEnd() : line);
          return lines.join("\\n");
        }};
        await tools.{write}({{ path: "{target}", content: await whole("manual.txt") }});
        """, **{read.replace(".", "__"): ["path"], write.replace(".", "__"): ["path", "content"]})
    else:
        texts, level = {}, ["manual.txt"]
        while level:
            found = in_parallel(s, read, [{"path": str(folder / name)} for name in level])
            texts |= dict(zip(level, found))
            level = [name for text in found for name in re.findall(r"^include (.+)$", text, flags=re.M)]
        whole = texts["manual.txt"]
        while "include " in whole:
            whole = re.sub(r"^include (.+)\n", lambda name: texts[name[1]], whole, flags=re.M)
        s.do(write, {"path": str(target), "content": whole})
    text = target.read_text()
    need(all(text.count(f"This is {name}.") == 1 for name in [*parts, "two.txt", "seven.txt"]) and "include" not in text, text[:300])


@both("The first name that is free", alone=office)
def free_name(s, place, folder, script):
    """Write "Done." to report.txt, or, if it exists, to report-2.txt, report-3.txt and so on: the first that is free."""
    for n in range(1, 8):
        (folder / ("report.txt" if n == 1 else f"report-{n}.txt")).write_text("Taken.\n")
    read, write = s.find(READ, "read a text file"), s.find(WRITE, "write a text file")
    if script:
        script(f"""
        for (let n = 1; ; n++) {{
          const path = "{folder}/" + (n === 1 ? "report.txt" : `report-${{n}}.txt`);
          try {{
            await tools.{read}({{ path, head: 1 }});
          }} catch (error) {{
            await tools.{write}({{ path, content: "Done.\\n" }});
            return {{ path }};
          }}
        }}
        """, **{read.replace(".", "__"): ["path", "head"], write.replace(".", "__"): ["path", "content"]})
    else:
        n = 1
        while not s.run(read, {"path": str(folder / ("report.txt" if n == 1 else f"report-{n}.txt")), "head": 1}).is_error:
            n += 1
        s.do(write, {"path": str(folder / f"report-{n}.txt"), "content": "Done.\n"})
    need((folder / "report-8.txt").read_text() == "Done.\n", f"{sorted(folder.iterdir())}")


@both("The newest log with an error", alone=office)
def newest_error(s, place, folder, script):
    """Logs of forty days lie in the folder. When was the last error, and what does its line say?"""
    for day in range(1, 31):
        line = f"{day:02}.11. ERROR the disk is full\n" if day in (4, 11) else ""
        (folder / f"2026-11-{day:02}.log").write_text(f"{day:02}.11. INFO all is well\n" * 30 + line)
    lists, read = s.find(LIST, "list the files of a folder"), s.find(READ, "read a text file")
    if script:
        last = script(f"""
        const listing = await tools.{lists}({{ path: "{folder}" }});
        const names = listing.match(/[\\d-]+\\.log/g).sort().reverse();
        for (const name of names) {{
          const text = await tools.{read}({{ path: "{folder}/" + name }});
          const line = text.split("\\n").find((line) => line.includes("ERROR"));
          if (line) return {{ name, line }};
        }}
        """, **{lists.replace(".", "__"): ["path"], read.replace(".", "__"): ["path"]})["output"]
    else:
        names = sorted(re.findall(r"[\d-]+\.log", s.do(lists, {"path": str(folder)}).text), reverse=True)
        last = None
        # Five at a time: most likely the error is not long ago.
        for begin in range(0, len(names), 5):
            some = names[begin : begin + 5]
            texts = in_parallel(s, read, [{"path": str(folder / name)} for name in some])
            hits = [(name, line) for name, text in zip(some, texts) for line in text.splitlines() if "ERROR" in line]
            if hits:
                last = {"name": hits[0][0], "line": hits[0][1]}
                break
    need(last == {"name": "2026-11-11.log", "line": "11.11. ERROR the disk is full"}, f"{last}")


# --- graphs, databases, clocks --------------------------------------------------------------------


@both("Up a chain of people", alone=lambda place: place.server("memory") + place.server("filesystem"))
def chain(s, place, folder, script):
    """Worker 0 reports to somebody, who reports to somebody. Who is at the top?"""
    graph = place.path("memory.jsonl")
    lines = graph.read_text().splitlines() if graph.exists() else []
    for n in range(60):
        lines.append(json.dumps({"type": "entity", "name": f"Worker {n}", "entityType": "worker", "observations": ["Works well", "Likes tea"]}))
        if n < 54:
            lines.append(json.dumps({"type": "relation", "from": f"Worker {n}", "to": f"Worker {n + 6}", "relationType": "reports to"}))
    graph.write_text("\n".join(lines))
    name = s.find("memory.open_nodes", "open nodes of the knowledge graph by name")
    if script:
        top = script("""
        for (let name = "Worker 0"; ;) {
          const { relations } = await tools.memory.open_nodes({ names: [name] });
          const up = relations.find((one) => one.from === name && one.relationType === "reports to");
          if (!up) return { top: name };
          name = up.to;
        }
        """, memory__open_nodes=["names"])["output"]["top"]
    else:
        top = "Worker 0"
        while True:
            found = s.do(name, {"names": [top]}).json["relations"]
            up = [one["to"] for one in found if one["from"] == top and one["relationType"] == "reports to"]
            if not up:
                break
            top = up[0]
    need(top == "Worker 54", top)


@both("Two people in a graph", alone=lambda place: place.server("memory") + place.server("filesystem"))
def between(s, place, folder, script):
    """Over how many others does Friend 0 know Friend 39, at least?"""
    graph = place.path("memory.jsonl")
    lines = graph.read_text().splitlines() if graph.exists() else []
    knows = lambda n: {(n * 2 + 1) % 40, (n + 7) % 40}
    for n in range(40):
        lines.append(json.dumps({"type": "entity", "name": f"Friend {n}", "entityType": "friend", "observations": []}))
        lines += [json.dumps({"type": "relation", "from": f"Friend {n}", "to": f"Friend {m}", "relationType": "knows"}) for m in sorted(knows(n))]
    graph.write_text("\n".join(lines))
    name = s.find("memory.open_nodes", "open nodes of the knowledge graph by name")
    if script:
        steps = script("""
        const seen = new Set(["Friend 0"]);
        for (let level = [...seen], steps = 0; level.length; steps++) {
          if (seen.has("Friend 39")) return { steps };
          const { relations } = await tools.memory.open_nodes({ names: level });
          level = relations.filter((one) => level.includes(one.from)).map((one) => one.to).filter((name) => !seen.has(name));
          level.forEach((name) => seen.add(name));
        }
        """, memory__open_nodes=["names"])["output"]["steps"]
    else:
        seen, level, steps = {"Friend 0"}, ["Friend 0"], 0
        while "Friend 39" not in seen:
            found = s.do(name, {"names": level}).json["relations"]
            level = sorted({one["to"] for one in found if one["from"] in level} - seen)
            seen |= set(level)
            steps += 1
    reached, wanted = {0}, 0
    while 39 not in reached:
        reached |= {m for n in reached for m in knows(n)}
        wanted += 1
    need(steps == wanted, f"{steps} steps instead of {wanted}")


def databases(place):
    return place.server("sqlite") + place.server("filesystem")


@both("Empty cells of all tables", alone=databases)
def gaps(s, place, folder, script):
    """Which columns of which tables in the database have empty cells, and how many?"""
    with sqlite3.connect(place.path("stock.db")) as base:
        for n in range(5):
            base.execute(f"CREATE TABLE IF NOT EXISTS list_{n} (id INTEGER, name TEXT, note TEXT)")
            base.execute(f"DELETE FROM list_{n}")
            base.executemany(f"INSERT INTO list_{n} VALUES (?, ?, ?)", [(k, f"name {k}", None if k % (n + 2) == 0 else "note") for k in range(30)])
    tables = s.find("sqlite.list_tables", "list the tables of the SQLite database")
    columns = s.find("sqlite.describe_table", "describe the columns of a table in SQLite")
    query = s.find("sqlite.read_query", "run a SELECT in SQLite")
    wanted = {f"list_{n}.note": len([k for k in range(30) if k % (n + 2) == 0]) for n in range(5)}
    parsed = lambda text: [dict(re.findall(r"'(\w+)': '?([^',}]*)'?", row)) for row in re.findall(r"\{[^}]*\}", text)]
    if script:
        found = script("""
        // The server writes rows as Python does.
        const rows = (text) => [...text.matchAll(/\\{[^}]*\\}/g)].map(([row]) =>
          Object.fromEntries([...row.matchAll(/'(\\w+)': '?([^',}]*)'?/g)].map(([, key, value]) => [key, value])));
        const gaps = {};
        for (const { name: table } of rows(await tools.sqlite.list_tables())) {
          const columns = rows(await tools.sqlite.describe_table({ table_name: table }));
          const sums = columns.map(({ name }) => `sum(${name} IS NULL) AS ${name}`).join(", ");
          const [counts] = rows(await tools.sqlite.read_query({ query: `SELECT ${sums} FROM ${table}` }));
          for (const [column, count] of Object.entries(counts)) if (count > 0) gaps[`${table}.${column}`] = Number(count);
        }
        return gaps;
        """, sqlite__describe_table=["table_name"], sqlite__read_query=["query"])["output"]
    else:
        names = [row["name"] for row in parsed(s.do(tables).text)]
        told = in_parallel(s, columns, [{"table_name": name} for name in names])
        sums = lambda text: ", ".join(f"sum({row['name']} IS NULL) AS {row['name']}" for row in parsed(text))
        asked = [{"query": f"SELECT {sums(str(text))} FROM {name}"} for name, text in zip(names, told)]
        counted = in_parallel(s, query, asked)
        found = {}
        for name, text in zip(names, counted):
            found |= {f"{name}.{column}": int(count) for column, count in parsed(str(text))[0].items() if count.isdigit() and int(count)}
    need(found == wanted, f"{found}")


@both("Added or changed", alone=databases)
def upsert(s, place, folder, script):
    """Put the ten deliveries into the table parts: add to the amount of a part that is there, insert the others."""
    deliveries = {f"part {n}": n * 3 for n in range(10)}
    with sqlite3.connect(place.path("stock.db")) as base:
        base.execute("DROP TABLE IF EXISTS parts")
        base.execute("CREATE TABLE parts (name TEXT PRIMARY KEY, amount INTEGER)")
        base.executemany("INSERT INTO parts VALUES (?, ?)", [(f"part {n}", 100) for n in range(0, 10, 2)])
    query = s.find("sqlite.read_query", "run a SELECT in SQLite")
    write = s.find("sqlite.write_query", "run an INSERT or UPDATE in SQLite")
    update = "UPDATE parts SET amount = amount + {amount} WHERE name = '{name}'"
    insert = "INSERT INTO parts VALUES ('{name}', {amount})"
    if script:
        script(f"""
        const deliveries = {compact(deliveries)};
        for (const [name, amount] of Object.entries(deliveries)) {{
          const found = await tools.sqlite.read_query({{ query: `SELECT name FROM parts WHERE name = '${{name}}'` }});
          const sql = String(found).includes(name)
            ? `UPDATE parts SET amount = amount + ${{amount}} WHERE name = '${{name}}'`
            : `INSERT INTO parts VALUES ('${{name}}', ${{amount}})`;
          await tools.sqlite.write_query({{ query: sql }});
        }}
        """, sqlite__read_query=["query"], sqlite__write_query=["query"])
    else:
        there = s.do(query, {"query": "SELECT name FROM parts"}).text
        sqls = [(update if f"'{name}'" in there else insert).format(name=name, amount=amount) for name, amount in deliveries.items()]
        in_parallel(s, write, [{"query": sql} for sql in sqls])
    with sqlite3.connect(place.path("stock.db")) as base:
        found = dict(base.execute("SELECT name, amount FROM parts"))
    need(found == {name: amount + (0 if n % 2 else 100) for n, (name, amount) in enumerate(deliveries.items())}, f"{found}")


@both("An hour for five offices", alone=lambda place: place.server("time") + place.server("filesystem"))
def hour(s, place, folder, script):
    """At which full hour, in Berlin's time, is it between 8 and 19 in Berlin, London, New York, Sao Paulo and Lagos?"""
    zones = ["Europe/London", "America/New_York", "America/Sao_Paulo", "Africa/Lagos"]
    name = s.find("time.convert_time", "convert a time between time zones")
    params = lambda at, zone: {"source_timezone": "Europe/Berlin", "time": f"{at:02}:00", "target_timezone": zone}
    fits = lambda moment: 8 <= int(re.search(r"T(\d\d)", moment)[1]) < 19
    if script:
        found = script(f"""
        for (let hour = 8; hour < 19; hour++) {{
          const there = await all({compact(zones)}, (zone) => tools.time.convert_time(
            {{ source_timezone: "Europe/Berlin", time: String(hour).padStart(2, "0") + ":00", target_timezone: zone }}));
          const fits = ({{ target }}) => {{
            const at = Number(target.datetime.slice(11, 13));
            return at >= 8 && at < 19;
          }};
          if (there.every(fits)) return {{ hour }};
        }}
        """, time__convert_time=["source_timezone", "time", "target_timezone"])["output"]["hour"]
    else:
        found = None
        for at in range(8, 19):
            there = in_parallel(s, name, [params(at, zone) for zone in zones])
            if all(fits(one["target"]["datetime"]) for one in there):
                found = at
                break
    need(found in (13, 14), f"{found}")
