"""Fifteen tasks of a second kind: what one call hands on to many others, to another server, or to another day.

As in sessions.py, a script uses only what a model can know: names from answers, keys of actions that the definition of
`run_parallel` names, and values of results that a definition or an earlier answer has shown.
"""

import csv
import http.server
import io
import json
import re
import struct
import threading
import time
import zipfile
import zlib

from client import need
from sessions import READ, WRITE, task

LIST = ["filesystem.list_directory", "filesystem.directory_tree"]


def composed(name, alone=None):
    return task(name, alone, kind="composed")


def text(value):
    """A text of jq."""
    return json.dumps(value)


# --- loops ----------------------------------------------------------------------------------------


@composed("A loop with a decision")
def decision(s, place):
    """WORK/inbox has twelve letters. Copy those that say `urgent` to WORK/urgent, under the same name."""
    inbox, urgent = place.path("work/inbox"), place.path("work/urgent")
    inbox.mkdir()
    urgent.mkdir()
    for n in range(12):
        body = f"{'This is urgent.' if n % 4 == 0 else 'Take your time.'} Letter {n}.\n" + "And so on, and so forth.\n" * 40
        (inbox / f"letter-{n:02}.txt").write_text(body)
    names = re.findall(r"[\w-]+\.txt", s.do(s.find(LIST, "list the files of a folder"), {"path": str(inbox)}).text)
    read, write = s.find(READ, "read a text file"), s.find(WRITE, "write a text file")
    chosen = f'[{text(names)}, .steps.letters] | transpose | map(select(.[1] | test("urgent")) | {{name: .[0], text: .[1]}})'
    copy = {"path": str(urgent) + "/{{item.name}}", "content": "{{item.text}}"}
    s.parallel(
        {"id": "letters", "name": read, "for_each": names, "params": {"path": str(inbox) + "/{{item}}"}},
        {"id": "chosen", "filter": chosen},
        {"id": "copies", "name": write, "for_each": "{{chosen}}", "params": copy},
    )
    copies = {file.name: file.read_text() for file in urgent.iterdir()}
    wanted = {f"letter-{n:02}.txt" for n in (0, 4, 8)}
    need(set(copies) == wanted and all("This is urgent." in copy for copy in copies.values()), f"copied: {sorted(copies)}")


@composed("Some of many are missing")
def missing(s, place):
    """Twelve contracts are listed in WORK/contracts.txt. Which of them are not in WORK? Write their names into WORK/missing.txt."""
    names = [f"contract-{n:02}.txt" for n in range(12)]
    gone = [names[3], names[7], names[8]]
    for name in names:
        if name not in gone:
            place.path(f"work/{name}").write_text(f"Contract {name}\n" * 50)
    place.path("work/contracts.txt").write_text("\n".join(names) + "\n")
    read, write = s.find(READ, "read a text file"), s.find(WRITE, "write a text file")
    listed = s.do(read, {"path": str(place.path("work/contracts.txt"))}).text.split()
    answer = s.graph(
        {
            "id": "contracts",
            "name": read,
            "for_each": listed,
            "params": {"path": str(place.path("work")) + "/{{item}}", "head": 1},
            "on_error": "keep",
        },
        {
            "id": "missing",
            "filter": f'[{text(listed)}, .steps.contracts] | transpose | map(select(.[1] | type == "object" and has("error")) | .[0])',
            "show": True,
        },
        {"id": "write", "name": write, "params": {"path": str(place.path("work/missing.txt")), "content": "{{missing}}"}},
    )
    loop = json.dumps(answer.json["results"][0])
    need(re.search(r'"failed":\s*3\b', loop), f"the loop does not say that three items failed: {loop[:400]}")
    need(json.loads(place.path("work/missing.txt").read_text()) == gone, place.path("work/missing.txt").read_text())


@composed("A sum over many files")
def many(s, place):
    """WORK/tills has a JSON file for each of twenty tills. What did each branch take in all, and which till took most?"""
    tills = place.path("work/tills")
    tills.mkdir()
    for n in range(20):
        sales = [{"no": k, "amount": (k * 7 + n) % 50} for k in range(60)]
        (tills / f"till-{n:02}.json").write_text(json.dumps({"branch": ["north", "south"][n % 2], "till": n, "sales": sales}))
    taken = {n: sum((k * 7 + n) % 50 for k in range(60)) for n in range(20)}
    north = sum(sum_ for n, sum_ in taken.items() if n % 2 == 0)
    names = re.findall(r"[\w-]+\.json", s.do(s.find(LIST, "list the files of a folder"), {"path": str(tills)}).text)
    read = s.find(READ, "read a text file")
    sums = (
        "[.steps.tills[] | {branch, till, taken: (.sales | map(.amount) | add)}] | "
        "{branches: (group_by(.branch) | map({branch: .[0].branch, taken: (map(.taken) | add)})), most: max_by(.taken)}"
    )
    found = s.parallel(
        {"id": "tills", "name": read, "for_each": names, "params": {"path": str(tills) + "/{{item}}"}},
        {"id": "sums", "filter": sums},
    )["sums"]["result"]
    need({"branch": "north", "taken": north} in found["branches"], f"{found}")
    need(found["most"]["taken"] == max(taken.values()), f"{found}")


# --- tables ---------------------------------------------------------------------------------------


@composed("A join of two files")
def join(s, place):
    """WORK/people.csv has customers, WORK/bills.json what they paid. Write name, city and sum of each into WORK/joined.csv."""
    people = "".join(f"{n},Person {n},{('Bonn', 'Kiel', 'Ulm')[n % 3]}\n" for n in range(60))
    place.path("work/people.csv").write_text("id,name,city\n" + people)
    bills = [{"no": k, "customer": k * 13 % 60, "total": k % 41} for k in range(900)]
    place.path("work/bills.json").write_text(json.dumps(bills))
    read, write = s.find(READ, "read a text file"), s.find(WRITE, "write a text file")
    rows = (
        '(.steps.bills | group_by(.customer) | map({key: "\\(.[0].customer)", value: (map(.total) | add)}) | from_entries) as $paid'
        ' | .steps.people | split("\\n")[1:] | map(select(. != "") | split(",") | [.[1], .[2], ($paid[.[0]] // 0)])'
        ' | [["name", "city", "paid"]] + . | map(@csv) | join("\\n")'
    )
    target = place.path("work/joined.csv")
    s.parallel(
        {"id": "people", "name": read, "params": {"path": str(place.path("work/people.csv"))}},
        {"id": "bills", "name": read, "params": {"path": str(place.path("work/bills.json"))}},
        {"id": "rows", "filter": rows},
        {"id": "write", "name": write, "params": {"path": str(target), "content": "{{rows}}"}},
    )
    found = list(csv.reader(io.StringIO(target.read_text())))
    paid = [[f"Person {n}", ("Bonn", "Kiel", "Ulm")[n % 3], str(sum(b["total"] for b in bills if b["customer"] == n))] for n in range(60)]
    need(found == [["name", "city", "paid"], *paid], f"{found[:4]}")


@composed("A recomputed column")
def column(s, place):
    """Put WORK/prices.csv into the workbook WORK/prices.xlsx, with a third column: the price with 19 % tax, rounded to cents."""
    place.path("work/prices.csv").write_text("item,net\n" + "".join(f"item-{n},{n * 1.37:.2f}\n" for n in range(1, 81)))
    path = str(place.path("work/prices.xlsx"))
    read = s.find(READ, "read a text file")
    create = s.find("excel.create_workbook", "create an Excel workbook")
    write = s.find("excel.write_range", "write rows into an Excel sheet")
    rows = (
        '.steps.prices | split("\\n")[1:] | map(select(. != "") | split(",") | (.[1] | tonumber) as $net'
        ' | [.[0], $net, ($net * 119 | round / 100)]) | [["item", "net", "gross"]] + .'
    )
    s.parallel(
        {"id": "prices", "name": read, "params": {"path": str(place.path("work/prices.csv"))}},
        {"id": "rows", "filter": rows},
        {"id": "book", "name": create, "params": {"path": path, "sheets": ["Prices"]}},
        {"id": "write", "name": write, "params": {"path": path, "sheet": "Prices", "at": "A1", "rows": "{{rows}}"}, "after": ["book"]},
    )
    with zipfile.ZipFile(path) as archive:
        sheet = archive.read("xl/worksheets/sheet1.xml").decode()
    need(f"<v>{round(80 * 1.37 * 1.19, 2)}</v>" in sheet and sheet.count("<row ") == 81, f"another table: {sheet[-400:]}")


@composed("Rows of a database as a note")
def note(s, place):
    """How many visits had each page, by WORK/visits.csv? DuckDB can count. Put it into my notes as Visits.md, as a table."""
    visits = "".join(f"2026-11-{1 + n % 28:02},/page-{n * n % 9}\n" for n in range(500))
    place.path("work/visits.csv").write_text("day,page\n" + visits)
    query = s.find("duckdb.execute_query", "load a CSV file into a DuckDB table", "run SQL in DuckDB")
    write = s.find("vault.write_note", "write a note into the Obsidian vault")
    sql = f"SELECT page, count(*) AS visits FROM read_csv('{place.path('work/visits.csv')}') GROUP BY page ORDER BY page"
    # The first rows show what an answer looks like.
    shown = s.do(query, {"sql": sql + " LIMIT 1"}).json
    need(shown["rows"] and shown["columns"], f"{shown}")
    table = (
        '.steps.counts | [.columns, (.columns | map("---"))] + .rows | map("| " + (map(tostring) | join(" | ")) + " |") | join("\\n")'
    )
    s.parallel(
        {"id": "counts", "name": query, "params": {"sql": sql}},
        {"id": "table", "filter": table},
        {"id": "note", "name": write, "params": {"path": "Visits.md", "content": "{{table}}"}},
    )
    written = place.path("notes/Visits.md").read_text()
    count = visits.count("/page-4\n")
    need("| page | visits |\n| --- | --- |" in written and f"| /page-4 | {count} |" in written, written[:300])


@composed("Two servers compared")
def compared(s, place):
    """Which members in the knowledge graph have no file in WORK/members? Write one for each, with what the graph says of them."""
    members = place.path("work/members")
    members.mkdir()
    graph = place.path("memory.jsonl")
    lines = graph.read_text().splitlines() if graph.exists() else []
    for n in range(30):
        observations = [f"Joined in {1990 + n}", "Pays on time"]
        lines.append(json.dumps({"type": "entity", "name": f"Member {n}", "entityType": "member", "observations": observations}))
        if n % 5:
            (members / f"Member {n}.txt").write_text("Known.\n")
    graph.write_text("\n".join(lines))
    read = s.find("memory.read_graph", "read the whole knowledge graph")
    lists, write = s.find(LIST, "list the files of a folder"), s.find(WRITE, "write a text file")
    # Which members the graph's value has.
    s.describe(read)
    need({"entities", "entityType", "observations"} <= set(re.findall(r"\w+", s.known[read])), "the graph's value is not described")
    absent = (
        '.steps.files as $files | [.steps.graph.entities[] | select(.entityType == "member") | select(.name as $name | $files'
        ' | contains("\\($name).txt") | not) | {name, text: (.observations | join("\\n"))}]'
    )
    file = {"path": str(members) + "/{{item.name}}.txt", "content": "{{item.text}}"}
    s.parallel(
        {"id": "graph", "name": read},
        {"id": "files", "name": lists, "params": {"path": str(members)}},
        {"id": "absent", "filter": absent},
        {"id": "write", "name": write, "for_each": "{{absent}}", "params": file},
    )
    need(len(list(members.iterdir())) == 30, f"{sorted(file.name for file in members.iterdir())}")
    need((members / "Member 25.txt").read_text() == "Joined in 2015\nPays on time", "another text")


@composed("A table from a log of 3 MB")
def counted(s, place):
    """How many requests did each worker serve, by WORK/access.log? Write worker and count into WORK/workers.csv."""
    lines = [f"2026-11-{1 + n // 2000:02} INFO request {n} served in {n * 7919 % 400} ms by worker-{n * n % 7}\n" for n in range(45_000)]
    place.path("work/access.log").write_text("".join(lines))
    read, write = s.find(READ, "read a text file"), s.find(WRITE, "write a text file")
    head = s.do(read, {"path": str(place.path("work/access.log")), "head": 2}).text
    need("by worker-" in head, head)
    table = (
        '.steps.log | split("\\n") | map(select(. != "") | split(" by ")[1]) | group_by(.) | map([.[0], length] | @csv) | join("\\n")'
    )
    target = place.path("work/workers.csv")
    s.parallel(
        {"id": "log", "name": read, "params": {"path": str(place.path("work/access.log"))}},
        {"id": "table", "filter": table},
        {"id": "write", "name": write, "params": {"path": str(target), "content": "{{table}}"}},
    )
    found = {worker: int(count) for worker, count in csv.reader(io.StringIO(target.read_text()))}
    wanted = {}
    for line in lines:
        worker = line.split(" by ")[1].strip()
        wanted[worker] = wanted.get(worker, 0) + 1
    need(found == wanted, f"{found}")


# --- services that fail ---------------------------------------------------------------------------


class Rates(http.server.BaseHTTPRequestHandler):
    """Rates of currencies. The first `failures` requests for each are refused as too busy."""

    failures = 0
    seen = {}

    def do_GET(self):
        currency = self.path.rsplit("/", 1)[-1]
        self.seen[currency] = self.seen.get(currency, 0) + 1
        is_busy = self.seen[currency] <= self.failures
        body = b'{"error": "busy, try again"}' if is_busy else json.dumps({"currency": currency, "rate": len(currency) + 0.25}).encode()
        self.send_response(503 if is_busy else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def rates(place, failures, listens=True):
    """The table of a service of rates that a thread of this process serves, once it listens."""
    handler = type("Busy", (Rates,), {"failures": failures, "seen": {}})
    service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
    service.server_bind()
    place.service = service
    if listens:
        listen(service)
    return f"""
[servers.rates]
description = "Exchange rates"
base_url = "http://127.0.0.1:{service.server_address[1]}"

[servers.rates.endpoints.get_rate]
description = "The exchange rate of a currency"
path = "/rates/{{currency}}"
"""


def listen(service):
    service.server_activate()
    threading.Thread(target=service.serve_forever, daemon=True).start()


@composed("A service that is often busy", alone=lambda place: place.server("filesystem") + rates(place, 3))
def busy(s, place):
    """Write the exchange rates of six currencies into WORK/rates.json. The service is often busy."""
    # The servers start while the user writes.
    time.sleep(2)
    rate = s.find("rates.get_rate", "exchange rate of a currency")
    write = s.find(WRITE, "write a text file")
    target = place.path("work/rates.json")
    currencies = ["eur", "usd", "gbp", "jpy", "chf", "sek"]
    loop = {"id": "rates", "name": rate, "for_each": currencies, "params": {"currency": "{{item}}"}}
    loop["retry"] = {"times": 4, "wait": "100ms"}
    s.parallel(loop, {"id": "write", "name": write, "params": {"path": str(target), "content": "{{rates}}"}})
    need([one["currency"] for one in json.loads(target.read_text())] == currencies, target.read_text())


@composed("Tell me when it is up again", alone=lambda place: place.server("time") + rates(place, 0, listens=False))
def again(s, place):
    """The service of exchange rates does not answer. Tell me when it is up again."""
    time.sleep(2)
    rate = s.find("rates.get_rate", "exchange rate of a currency")
    need(s.run(rate, {"currency": "eur"}).is_error, "it is up already")
    watch = s.find("gateway.watch_start", "watch a tool and tell me when it works again", "watch a tool for errors")
    s.do(watch, {"name": rate, "params": {"currency": "eur"}, "interval": 5, "notify_when": "on_error"})
    listen(place.service)
    # The user goes on with something else.
    time.sleep(12)
    clock = s.find("time.get_current_time", "what time is it in a city")
    s.do(clock, {"timezone": "Europe/Berlin"})
    need("recovered" in json.dumps(s.notices), f"no notice: {s.notices}")


# --- people ---------------------------------------------------------------------------------------


@composed("An approval of many")
def approvals(s, place):
    """Move the nine reports of WORK/reports to WORK/archive."""
    reports, archive = place.path("work/reports"), place.path("work/archive")
    reports.mkdir()
    archive.mkdir()
    for n in range(9):
        (reports / f"report-{n}.txt").write_text(f"Report {n}\n")
    names = re.findall(r"[\w-]+\.txt", s.do(s.find(LIST, "list the files of a folder"), {"path": str(reports)}).text)
    move = s.find("filesystem.move_file", "move a file to another place", "rename a file")
    params = {"source": str(reports) + "/{{item}}", "destination": str(archive) + "/{{item}}"}
    answer = s.graph({"id": "move", "name": move, "for_each": names, "params": params})
    need(not list(archive.iterdir()), "they were moved without a word")
    step = s.next_step(answer)
    s.call(step["tool"], **step["arguments"], answer="Yes to all")
    need(len(list(archive.iterdir())) == 9, f"moved: {sorted(file.name for file in archive.iterdir())}")


CAREFUL = '[servers.filesystem.tools.write_file]\npolicy = "approve"\n'


@composed("An approval of a long text", alone=lambda place: place.server("filesystem") + CAREFUL)
def approved(s, place):
    """Write the minutes (60 kB) to WORK/minutes.txt."""
    minutes = "".join(f"{n}. Somebody says something that has to be written down, and everybody agrees.\n" for n in range(780))
    write = s.find("filesystem.write_file", "write a text file")
    answer = s.run(write, {"path": str(place.path("work/minutes.txt")), "content": minutes})
    need(answer.error["code"] == "needs_approval", answer.text[:300])
    step = answer.error["next_step"]
    s.call(step["tool"], **step["arguments"], answer="ja, mach das")
    need(place.path("work/minutes.txt").exists(), "the yes has not run the call")
    need(place.path("work/minutes.txt").read_text() == minutes, "another text")


# --- pictures and files ---------------------------------------------------------------------------


def png(size):
    """A grey picture."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    lines = b"".join(b"\0" + bytes((x * y) % 256 for x in range(size)) for y in range(size))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


@composed("A picture on a slide")
def slide(s, place):
    """Put WORK/logo.png on a slide, and save it as WORK/logo.pptx. The server of presentations may not read my files."""
    logo = png(120)
    place.path("work/logo.png").write_bytes(logo)
    read = s.find("filesystem.read_media_file", "read an image file")
    create = s.find("powerpoint.create_presentation", "create a PowerPoint presentation")
    add = s.find("powerpoint.add_slide", "add a slide to a PowerPoint presentation")
    image = s.find("powerpoint.manage_image", "add an image to a PowerPoint slide")
    save = s.find("powerpoint.save_presentation", "save a PowerPoint presentation")
    # What the value of the picture has.
    s.describe(read)
    need({"content", "data"} <= set(re.findall(r"\w+", s.known[read])), "the picture's value is not described")
    deck = {"presentation_id": s.do(create).json["presentation_id"]}
    path = place.path("work/logo.pptx")
    picture = {"slide_index": 0, "operation": "add", "source_type": "base64", "image_source": "{{logo.content.0.data}}"}
    s.parallel(
        {"id": "logo", "name": read, "params": {"path": str(place.path("work/logo.png"))}},
        {"id": "slide", "name": add, "params": {"title": "Our logo", **deck}},
        {"id": "picture", "name": image, "params": {**picture, **deck}, "after": ["slide"]},
        {"id": "save", "name": save, "params": {"file_path": str(path), **deck}, "after": ["picture"]},
    )
    with zipfile.ZipFile(path) as archive:
        media = [name for name in archive.namelist() if name.startswith("ppt/media/")]
        need(media and archive.read(media[0]) == logo, f"another picture: {media}")


@composed("A file from tool to tool")
def file(s, place):
    """The workbook WORK/plan.xlsx has to be in WORK/copies as well: export it from the one place, and import it at the other."""
    source, target = place.path("work/plan.xlsx"), place.path("work/copies/plan.xlsx")
    target.parent.mkdir()
    create = s.find("excel.create_workbook", "create an Excel workbook")
    export = s.find("excel.export_workbook", "export an Excel workbook as base64")
    take = s.find("excel.import_workbook", "import an Excel workbook from base64")
    s.do(create, {"path": str(source), "sheets": ["Plan", "Costs"]})
    # An embedded file is named, not shown; its place is that of every resource in a result.
    kinds = [block["type"] for block in s.do(export, {"path": str(source)}).blocks]
    at = kinds.index("resource")
    s.parallel(
        {"id": "book", "name": export, "params": {"path": str(source)}},
        {"id": "copy", "name": take, "params": {"path": str(target), "content_base64": f"{{{{book.content.{at}.resource.blob}}}}"}},
    )
    with zipfile.ZipFile(target) as archive:
        need("Costs" in archive.read("xl/workbook.xml").decode(), "another workbook")


# --- another day ----------------------------------------------------------------------------------


@composed("What was said last time")
def memory(s, place):
    """On Monday: remember that Clara gets her invoices as PDF. On Tuesday: how do I send the invoice to Clara?"""
    keep = s.find("gateway.remember", "remember a fact for later")
    s.do(keep, {"content": "Clara gets her invoices as PDF, never on paper."})
    s.reopen()
    need(re.search(r"\bfacts?\b", s.instructions), f"nothing says that something is remembered: {s.instructions}")
    found = s.search("what do I know about invoices to Clara")
    need("gateway.recall" in json.dumps(found), f"nothing leads to what is remembered: {json.dumps(found)[:300]}")
    recall = s.find("gateway.recall", "recall what was remembered")
    need("PDF" in s.do(recall, {"query": "invoices to Clara"}).text, "not recalled")
