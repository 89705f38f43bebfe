"""Thirty tasks, each as a model with nothing but the nine meta-tools would go about it.

A task's text is the wish of its user. Names and params come from answers of the session (`Session` sees to it): the
queries are what a model would type, and where one does not find the tool, the next one is tried and counts as well.
At the end of each task stands what has to be so in the world, or in the answer that the user gets.
"""

import hashlib
import json
import re
import time
import zipfile

from client import Failed, need

TASKS = []

READ = ["filesystem.read_text_file", "filesystem.read_file", "commander.read_file"]
WRITE = ["filesystem.write_file", "commander.write_file"]


def task(name, alone=None, kind="single"):
    """Takes a function as a task. `alone` gives the servers of a gateway of its own, as TOML."""

    def take(function):
        TASKS.append((name, function, alone, kind))
        return function

    return take


def unzipped(path, inside):
    with zipfile.ZipFile(path) as archive:
        return archive.read(inside).decode()


# --- files, git, memory, time ---------------------------------------------------------------------


@task("Edits over a folder")
def edits(s, place):
    """Rename the function `tax` to `vat` in all Python files of WORK/shop."""
    shop = place.path("work/shop")
    shop.mkdir()
    (shop / "price.py").write_text("def tax(net):\n    return net * 0.19\n")
    (shop / "cart.py").write_text("from price import tax\n\ndef total(net):\n    return net + tax(net)\n")
    (shop / "bill.py").write_text("import price\n\ndef line(net):\n    return f'{net} plus {price.tax(net)}'\n")
    (shop / "main.py").write_text("print('shop')\n")
    lists = s.find(["filesystem.list_directory", "filesystem.directory_tree"], "list the files of a folder")
    names = re.findall(r"\w+\.py", s.do(lists, {"path": str(shop)}).text)
    read = s.find(["filesystem.read_multiple_files", "commander.read_multiple_files"], "read several files at once")
    text = s.do(read, {"paths": [str(shop / name) for name in names]}).text
    edit = s.find(["filesystem.edit_file", "commander.edit_block"], "replace text in a file", "edit a text file")
    actions = []
    for name in names:
        # What the model read in this file.
        part = text.split(str(shop / name))[1].split("\n---\n")[0]
        lines = [line for line in part.splitlines() if re.search(r"\btax\b", line)]
        changes = [(line, re.sub(r"\btax\b", "vat", line)) for line in lines]
        if edit == "filesystem.edit_file" and changes:
            edits = [{"oldText": old, "newText": new} for old, new in changes]
            actions.append({"id": name, "name": edit, "params": {"path": str(shop / name), "edits": edits}})
        elif changes:
            for old, new in changes:
                params = {"file_path": str(shop / name), "old_string": old, "new_string": new}
                actions.append({"id": f"{name} {len(actions)}", "name": edit, "params": params})
    s.parallel(*actions)
    code = {file.name: file.read_text() for file in shop.iterdir()}
    need("tax" not in "".join(code.values()), f"still there: {code}")
    need(code["cart.py"].count("vat") == 2 and "price.vat(net)" in code["bill.py"], f"not renamed: {code}")


@task("History of a repository")
def history(s, place):
    """Who made the last change in WORK/site, why, and what was it?"""
    repository(place, "site")
    log = s.find("git.git_log", "history of a git repository")
    text = s.do(log, {"repo_path": str(place.path("work/site"))}).text
    commit = re.search(r"[0-9a-f]{40}", text).group()
    show = s.find("git.git_show", "show one commit of a git repository")
    text = s.do(show, {"repo_path": str(place.path("work/site")), "revision": commit}).text
    need("Ben" in text and "Longer page" in text and "+<p>More</p>" in text, text)


@task("A commit on a branch")
def commit(s, place):
    """What did I change in WORK/desk? Commit it on a new branch `wording`."""
    repo = repository(place, "desk")
    (repo / "page.html").write_text("<h1>Welcome</h1>\n<p>More</p>\n")
    diff = s.find(["git.git_diff_unstaged", "git.git_status"], "what changed in the repo", "changes that are not staged yet")
    text = s.do(diff, {"repo_path": str(repo)}).text
    need("page.html" in text, text)
    branch = s.find("git.git_create_branch", "create a git branch")
    switch = s.find("git.git_checkout", "switch to a git branch")
    add = s.find("git.git_add", "stage files in git")
    save = s.find("git.git_commit", "commit staged changes in git")
    at = {"repo_path": str(repo)}
    s.parallel(
        {"id": "branch", "name": branch, "params": {**at, "branch_name": "wording"}},
        {"id": "switch", "name": switch, "params": {**at, "branch_name": "wording"}, "after": ["branch"]},
        {"id": "add", "name": add, "params": {**at, "files": ["page.html"]}, "after": ["switch"]},
        {"id": "commit", "name": save, "params": {**at, "message": "Welcome visitors"}, "after": ["add"]},
    )
    need(place.git(repo, "log", "-1", "--format=%s", "wording").strip() == "Welcome visitors", "no commit")
    need(place.git(repo, "status", "--short") == "", "not all is committed")


@task("A knowledge graph")
def graph(s, place):
    """Remember: Anna leads the project Apollo, Ben tests it. Then tell me what you know of Apollo."""
    create = s.find("memory.create_entities", "add people and projects to the knowledge graph", "create entities in the knowledge graph")
    relate = s.find("memory.create_relations", "add relations to the knowledge graph")
    read = s.find(["memory.open_nodes", "memory.search_nodes"], "look up an entity of the knowledge graph")
    entity = lambda name, kind: {"name": name, "entityType": kind, "observations": []}
    relation = lambda source, how, target: {"from": source, "to": target, "relationType": how}
    ask = {"names": ["Apollo", "Anna", "Ben"]} if read == "memory.open_nodes" else {"query": "Apollo"}
    found = s.parallel(
        {
            "id": "people",
            "name": create,
            "params": {"entities": [entity("Anna", "person"), entity("Ben", "person"), entity("Apollo", "project")]},
        },
        {
            "id": "links",
            "name": relate,
            "params": {"relations": [relation("Anna", "leads", "Apollo"), relation("Ben", "tests", "Apollo")]},
            "after": ["people"],
        },
        {"id": "apollo", "name": read, "params": ask, "after": ["links"]},
    )
    need("leads" in json.dumps(found["apollo"]), f"not read back: {found['apollo']}")
    kept = place.path("memory.jsonl").read_text()
    need('"Apollo"' in kept and '"leads"' in kept and '"tests"' in kept, kept)


@task("Time zones")
def zones(s, place):
    """We meet at 16:30 in Berlin. When is that in Tokyo, New York and Kolkata?"""
    convert = s.find("time.convert_time", "convert a time to another time zone")
    cities = {"tokyo": "Asia/Tokyo", "new_york": "America/New_York", "kolkata": "Asia/Kolkata"}
    common = {"source_timezone": "Europe/Berlin", "time": "16:30"}
    found = s.parallel(
        *({"id": id, "name": convert, "params": {**common, "target_timezone": zone}} for id, zone in cities.items())
    )
    need("T10:30" in json.dumps(found["new_york"]), f"not converted: {found['new_york']}")


# --- data and documents ---------------------------------------------------------------------------


@task("CSV to a database")
def csv(s, place):
    """Load WORK/sales.csv into the DuckDB database as the table `sales`, and write the sum of each region to WORK/sums.json."""
    rows = [f"{day},{region},{amount}" for day in range(1, 29) for region, amount in (("north", day), ("south", 10))]
    place.path("work/sales.csv").write_text("day,region,amount\n" + "\n".join(rows) + "\n")
    query = s.find("duckdb.execute_query", "load a CSV file into a DuckDB table", "run SQL in DuckDB")
    write = s.find(WRITE, "write a text file")
    table = f"CREATE TABLE sales AS SELECT * FROM read_csv('{place.path('work/sales.csv')}')"
    sums = "SELECT region, sum(amount)::INTEGER AS total FROM sales GROUP BY region ORDER BY region"
    target = place.path("work/sums.json")
    s.parallel(
        {"id": "load", "name": query, "params": {"sql": table}},
        {"id": "sums", "name": query, "params": {"sql": sums}, "after": ["load"]},
        {"id": "write", "name": write, "params": {"path": str(target), "content": "{{sums.rows}}"}},
    )
    need(json.loads(target.read_text()) == [["north", 406], ["south", 280]], target.read_text())


@task("A spreadsheet")
def spreadsheet(s, place):
    """Make WORK/budget.xlsx: rent 900, food 400, fun 150, and a row with their sum as a formula. What does it say?"""
    path = place.path("work/budget.xlsx")
    create = s.find("excel.create_workbook", "create an Excel workbook")
    write = s.find("excel.write_range", "write rows into an Excel sheet")
    read = s.find("excel.read_range", "read cells of an Excel sheet")
    rows = [["Rent", 900], ["Food", 400], ["Fun", 150], ["Sum", "=SUM(B1:B3)"]]
    at = {"path": str(path), "sheet": "Budget"}
    found = s.parallel(
        {"id": "create", "name": create, "params": {"path": str(path), "sheets": ["Budget"]}},
        {"id": "write", "name": write, "params": {**at, "at": "A1", "rows": rows}, "after": ["create"]},
        {"id": "read", "name": read, "params": at, "after": ["write"]},
    )
    need("1450" in json.dumps(found["read"]), f"no sum: {found['read']}")
    need("SUM(B1:B3)" in unzipped(path, "xl/worksheets/sheet1.xml"), "no formula")


@task("A document")
def document(s, place):
    """Write an offer as a Word document WORK/offer.docx: a heading, a sentence, and a table of two prices."""
    path = str(place.path("work/offer.docx"))
    create = s.find("word.create_document", "create a Word document")
    heading = s.find("word.add_heading", "add a heading to a Word document")
    paragraph = s.find("word.add_paragraph", "add a paragraph to a Word document")
    table = s.find("word.add_table", "add a table to a Word document")
    at = {"filename": path}
    prices = {"rows": 2, "cols": 2, "data": [["Chair", "120"], ["Table", "340"]]}
    s.parallel(
        {"id": "1", "name": create, "params": at},
        {"id": "2", "name": heading, "params": {**at, "text": "Offer", "level": 1}, "after": ["1"]},
        {"id": "3", "name": paragraph, "params": {**at, "text": "Dear Anna, this is our offer."}, "after": ["2"]},
        {"id": "4", "name": table, "params": {**at, **prices}, "after": ["3"]},
    )
    text = unzipped(path, "word/document.xml")
    need(all(word in text for word in ("Offer", "Dear Anna", "Chair", "340")), "something is missing")


@task("A converted document, unread")
def converted(s, place):
    """Put WORK/letter.html as Markdown into my notes, as Letter.md, and below the line `For Anna` into WORK/letter.md."""
    body = "".join(f"<p>Paragraph {n} of a long letter, which no model needs to read.</p>" for n in range(400))
    place.path("work/letter.html").write_text(f"<html><body><h1>Dear Anna</h1>{body}</body></html>")
    convert = s.find("markitdown.convert_to_markdown", "convert an HTML file to Markdown", "convert a document to Markdown")
    note = s.find("vault.write_note", "write a note into the Obsidian vault")
    write = s.find(WRITE, "write a text file")
    copy = {"path": str(place.path("work/letter.md")), "content": "For Anna\n\n{{letter}}"}
    s.parallel(
        {"id": "letter", "name": convert, "params": {"uri": place.path("work/letter.html").as_uri()}},
        {"id": "note", "name": note, "params": {"path": "Letter.md", "content": "{{letter}}"}},
        {"id": "copy", "name": write, "params": copy},
    )
    for file, head in ((place.path("notes/Letter.md"), ""), (place.path("work/letter.md"), "For Anna\n\n")):
        text = file.read_text()
        need(text.startswith(head + "# Dear Anna") and text.count("\n\nParagraph ") == 400, f"{file}: {text[:200]}")


# --- large, long, many ----------------------------------------------------------------------------


@task("A line in a log of 3 MB")
def large_log(s, place):
    """Something went wrong in WORK/server.log. What, and when?"""
    big_log(place)
    read = s.find(READ, "read a text file")
    answer = s.do(read, {"path": str(place.path("work/server.log"))})
    note = next(json.loads(text) for text in answer.texts if text.startswith('{"truncated"'))
    fetch = next(iter(note["read_on"]))["arguments"]["name"]
    s.learn(json.dumps(note), fetch)
    found = s.run(fetch, {"ref": note["ref"], "grep": "ERROR|WARN"})
    if "card expired" not in found.text or len(found.text) > 20_000:
        # The value differs from the text shown.
        raise Failed(f"grep gives {len(found.text)} bytes: {found.text[:200]}")


@task("A copy of 3 MB, unread")
def large_copy(s, place):
    """Write WORK/saved.log: the line `Saved on Monday`, and below it all of WORK/server.log."""
    text = big_log(place)
    read = s.find(READ, "read a text file")
    write = s.find(WRITE, "write a text file")
    target = place.path("work/saved.log")
    s.parallel(
        {"id": "log", "name": read, "params": {"path": str(place.path("work/server.log"))}},
        {"id": "copy", "name": write, "params": {"path": str(target), "content": "Saved on Monday\n{{log}}"}},
    )
    digest = lambda text: hashlib.sha256(text.encode()).hexdigest()
    need(digest(target.read_text()) == digest("Saved on Monday\n" + text), f"not the log: {target.read_text()[:120]!r}")


@task("A sum over 3 MB of JSON")
def large_json(s, place):
    """What has customer 17 paid in all, by WORK/orders.json? Each order has `customer` and `total`."""
    orders = [{"id": n, "customer": n % 50, "total": n % 97, "items": ["x" * 60]} for n in range(25_000)]
    place.path("work/orders.json").write_text(json.dumps(orders, indent=1))
    paid = str(sum(order["total"] for order in orders if order["customer"] == 17))
    read = s.find(READ, "read a text file")
    filter = "[.[] | select(.customer == 17) | .total] | add"
    answer = s.run(read, {"path": str(place.path("work/orders.json"))}, select=filter)
    if answer.is_error or paid not in answer.text:
        # A model that looks for the value finds the member that contains the text.
        keys = s.run(read, {"path": str(place.path("work/orders.json"))}, select="keys")
        member = json.loads(keys.text)[0]
        filter = f".{member} | fromjson | {filter}"
        answer = s.run(read, {"path": str(place.path("work/orders.json"))}, select=filter)
    need(not answer.is_error and paid in answer.text, f"{paid} is not in {answer.text[:300]}")


@task("A call of 65 seconds")
def long_call(s, place):
    """Run the long operation of the test server, for 65 seconds, and tell me when it is over."""
    long = s.find("everything.trigger-long-running-operation", "run a long operation")
    answer = s.do(long, {"duration": 65, "steps": 13})
    for _ in range(4):
        if "completed" in answer.text.lower() and "task_id" not in answer.text:
            return
        answer = s.follow(answer.json.get("next_step"))
    raise Failed(f"not over: {answer.text[:300]}")


@task("A task in the background")
def background(s, place):
    """Start the long operation of the test server, for 8 seconds. Meanwhile: what time is it in Tokyo? Then tell me how it ended."""
    long = s.find("everything.trigger-long-running-operation", "run a long operation")
    started = s.do(long, {"duration": 8, "steps": 4}, background=True).json
    clock = s.find("time.get_current_time", "what time is it in a city")
    need("Asia/Tokyo" in s.do(clock, {"timezone": "Asia/Tokyo"}).text, "no time")
    ended = s.follow(started["next_step"])
    need("completed" in ended.text.lower(), ended.text)


@task("Twenty calls at once")
def twenty(s, place):
    """Make a folder WORK/diary with twenty files day-01.txt to day-20.txt, each with its number in it."""
    folder = place.path("work/diary")
    make = s.find(["filesystem.create_directory", "commander.create_directory"], "create a folder")
    s.do(make, {"path": str(folder)})
    write = s.find(WRITE, "write a text file")
    days = [f"{n:02}" for n in range(1, 21)]
    s.parallel(
        *({"id": day, "name": write, "params": {"path": f"{folder}/day-{day}.txt", "content": day}} for day in days)
    )
    need([(folder / f"day-{day}.txt").read_text() for day in days] == days, "not all files are there")


# --- skills, prompts, workflows, people -----------------------------------------------------------


@task("A skill")
def skill(s, place):
    """Write the release notes of WORK/press, the way we do it here."""
    repo = repository(place, "press")
    found = s.call("use_skill", query="write release notes").json["skills"]
    need(found[0]["name"] == "release-notes", f"the skill is not first: {found}")
    text = s.call("use_skill", command=found[0]["name"]).text
    need("NOTES.md" in text and "- subject (author)" in text, text)
    log = s.find("git.git_log", "history of a git repository")
    write = s.find(WRITE, "write a text file")
    commits = s.do(log, {"repo_path": str(repo)}).text
    lines = re.findall(r"Author: (\w+).*?Message: ([^\n]+)", commits, re.S)
    notes = "".join(f"- {subject} ({author})\n" for author, subject in lines)
    s.do(write, {"path": str(repo / "NOTES.md"), "content": notes})
    need((repo / "NOTES.md").read_text() == "- Longer page (Ben)\n- First page (Ann)\n", notes)


@task("A prompt of a server")
def prompt(s, place):
    """The test server has a prompt about the weather in a city. Use it for Lisbon."""
    found = s.call("use_skill", query="prompt with a city").json["skills"]
    name = next(one["name"] for one in found if "city" in one.get("arguments", []))
    text = s.call("use_skill", command=name, arguments={"city": "Lisbon"}).text
    need("Lisbon" in text, text)


@task("A workflow")
def workflow(s, place):
    """Keep a note `Boiler` with my workflow: serviced in May."""
    apps = s.call("call_app").json["apps"]
    app = next(app for app in apps if "note" in app["description"].lower())
    need({"title", "text"} <= set(app["input_schema"]["properties"]), f"{app}")
    output = s.call("call_app", app_id=app["app_id"], input={"title": "Boiler", "text": "Serviced in May"}).text
    need("Serviced in May" in output, output)
    need("Serviced in May" in place.path("memory.jsonl").read_text(), "it was not kept")


@task("A question in the chat")
def question(s, place):
    """Ask me which colour the charts shall have (red, green or blue), and write it to WORK/colour.txt."""
    asked = s.call("ask_user", question="Which colour?", choices=["red", "green", "blue"]).json
    need(asked["status"] == "needs_user", f"{asked}")
    answer = s.call("ask_user", token=asked["token"], answer="2, please").json
    need(answer["status"] == "answered" and answer.get("answer") == "green", f"{answer}")
    write = s.find(WRITE, "write a text file")
    s.do(write, {"path": str(place.path("work/colour.txt")), "content": answer["answer"]})
    need(place.path("work/colour.txt").read_text() == "green", "another colour")


@task("An approval in the chat")
def approval(s, place):
    """Move WORK/draft.txt to WORK/final.txt."""
    place.path("work/draft.txt").write_text("Done.\n")
    move = s.find("filesystem.move_file", "move a file to another place", "rename a file")
    params = {"source": str(place.path("work/draft.txt")), "destination": str(place.path("work/final.txt"))}
    answer = s.run(move, params)
    need(answer.error["code"] == "needs_approval", answer.text)
    need(place.path("work/draft.txt").exists(), "it was moved without a word")
    step = answer.error["next_step"]
    # A yes runs the call that waited.
    s.call(step["tool"], **step["arguments"], answer="Yes, go ahead.")
    need(place.path("work/final.txt").exists(), "the yes has not run the call")
    need(place.path("work/final.txt").read_text() == "Done.\n", "it was not moved")


# --- what goes wrong ------------------------------------------------------------------------------


MAILBOX = """
[servers.mailbox]
description = "E-mail: read and send messages"
command = "false"
"""


@task("A server that is down", alone=lambda place: place.server("filesystem") + place.server("time") + MAILBOX)
def down(s, place):
    """Send Anna an e-mail: the meeting is at four."""
    time.sleep(2)
    text = json.dumps(s.search("send an e-mail"))
    if "mailbox" not in text:
        text = s.call("list_categories").text
    need(re.search(r"mailbox[^{}]*\bdown\b", text), f"nothing says that `mailbox` is down: {text[:300]}")


@task("A server that is starting", alone=lambda place: place.slow("git", 4) + place.server("time"))
def starting(s, place):
    """What was the last commit in WORK/early?"""
    repo = repository(place, "early")
    query = "history of a git repository"
    for _ in range(5):
        found = s.search(query)
        if "git.git_log" in s.known:
            break
        if any(name.startswith("git.") for name in s.known):
            query = "git log"
        elif "starting" not in json.dumps(found):
            need("starting" in s.call("list_categories").text, "nothing says that a server is starting")
        # About the time between a model's calls.
        time.sleep(2)
    for _ in range(5):
        answer = s.run("git.git_log", {"repo_path": str(repo)})
        if not answer.is_error:
            break
        need(answer.error["retryable"], answer.text)
        time.sleep(answer.error.get("retry_after_ms", 1000) / 1000)
    need("Longer page" in answer.text, answer.text)


@task("Ambiguous and wrong names")
def names(s, place):
    """Which tables does the stock database have? And what is in WORK/names.txt?"""
    place.path("work/names.txt").write_text("Anna\nBen\n")
    answer = s.guess("list_tables", {})
    need(answer.error["code"] == "ambiguous_tool", answer.text)
    right = next(name for name in answer.error["did_you_mean"] if name.startswith("sqlite."))
    need("stock" in s.call("execute_tool", name=right, params={}).text, "no table")
    path = str(place.path("work/names.txt"))
    answer = s.guess("filesystem.readfile", {"path": path})
    need(answer.error["code"] == "unknown_tool", answer.text)
    near = answer.error["did_you_mean"][0]
    need("Ben" in s.call("execute_tool", name=near, params={"path": path}).text, "not read")
    # Names in other hosts' spelling mean the same tool.
    for name in ("mcp__nonet__filesystem__read_text_file", "filesystem/read_text_file", "Filesystem.Read-Text-File"):
        need("Ben" in s.guess(name, {"path": path}).text, f"{name} was not understood")
    # An unknown name: no far-fetched suggestions.
    answer = s.guess("spaceship.launch", {})
    need(answer.error["code"] == "unknown_tool", answer.text)


@task("Wrong params of every kind")
def wrong_params(s, place):
    """Nine calls that a hasty model makes; each shall do what was meant at once, or after the fault said how."""
    path = place.path("work/params.txt")
    path.write_text("one\ntwo\nthree\n")
    repo = str(repository(place, "params"))
    undone = []

    def means(name, arguments, expected):
        answer = s.call("execute_tool", name=name, **arguments)
        if answer.is_error:
            error = answer.error
            corrected = error.get("details", {}).get("corrected_call") or error.get("next_step")
            gaps = not corrected or "<" in json.dumps(corrected) or corrected["tool"] != "execute_tool"
            if gaps or not re.search(expected, s.follow(corrected).text):
                undone.append(f"{name} {json.dumps(arguments)[:90]}: {error['message'][:160]}")
        elif not re.search(expected, answer.text):
            undone.append(f"{name} {json.dumps(arguments)[:90]}: {answer.text[:160]}")
        return answer

    read = "filesystem.read_text_file"
    means(read, {"params": json.dumps({"path": str(path)})}, "three")  # a string of JSON
    means(read, {"params": {"path": str(path), "head": "1"}}, "one")  # a number as text
    means(read, {"path": str(path)}, "three")  # beside the name
    means(read, {"params": {"file_path": str(path)}}, "three")  # another name
    means("git.git_log", {"params": {"repoPath": repo}}, "Longer page")  # another case
    means("git.git_log", {"params": {"repo": repo, "max_count": 1}}, "Longer page")  # a part of the name
    means("sqlite.read_query", {"params": {"sql": "SELECT item FROM stock"}}, "pen")  # the usual name
    place.path("work/sizes").mkdir()
    for name, size in (("a.txt", 1), ("b.txt", 900)):
        place.path(f"work/sizes/{name}").write_text("x" * size)
    by_size = {"path": str(place.path("work/sizes")), "sortBy": "sizes"}
    means("filesystem.list_directory_with_sizes", {"params": by_size}, r"b\.txt[^$]*a\.txt")  # a choice misspelt
    # Undeclared params are reported.
    told = means("git.git_log", {"params": {"repo_path": repo, "path": "page.html"}}, "Longer page")
    if "path" not in "".join(told.texts[1:]):
        undone.append("nothing tells that `path` is no param of git_log")
    need(not undone, f"{len(undone)} of 9: " + "; ".join(undone))


# --- other languages, vague wishes ----------------------------------------------------------------


@task("A request in German")
def german(s, place):
    """Welche Dateien liegen in WORK/fotos, und welche ist die größte?"""
    folder = place.path("work/fotos")
    folder.mkdir()
    for name, size in (("meer.txt", 10), ("berg.txt", 4000), ("wald.txt", 300)):
        (folder / name).write_text("x" * size)
    wanted = "filesystem.list_directory_with_sizes"
    lists = s.find(wanted, "Dateien eines Ordners mit ihrer Größe auflisten", "Ordner auflisten", "list files with sizes")
    text = s.do(lists, {"path": str(folder), "sortBy": "size"}).text
    need(re.search(r"\[FILE\] (\w+)", text).group(1) == "berg", text)


@task("A request in French")
def french(s, place):
    """Quelle heure est-il à Montréal quand il est 9 h à Paris ?"""
    convert = s.find("time.convert_time", "convertir une heure dans un autre fuseau horaire", "convert a time to another time zone")
    params = {"source_timezone": "Europe/Paris", "time": "09:00", "target_timezone": "America/Toronto"}
    need("T03:00" in s.do(convert, params).text, "not converted")


@task("A request in Chinese")
def chinese(s, place):
    """库存数据库里有多少支笔? (How many pens are in the stock database?)"""
    query = s.find(["sqlite.read_query"], "查询数据库", "查询 SQLite 库存数据库", "read from the SQLite database")
    tables = s.find("sqlite.list_tables", "数据库有哪些表", "list tables of the SQLite database")
    need("stock" in s.do(tables).text, "no table")
    need("12" in s.do(query, {"query": "SELECT * FROM stock WHERE item = 'pen'"}).text, "no pens")


@task("A vague wish")
def vague(s, place):
    """I always forget what Anna drinks. You must have that somewhere."""
    wanted = ["vault.search_notes", "memory.search_nodes"]
    first = s.find(wanted, "look up what I know about a person", "search my notes")
    answers = [s.do(first, {"query": "Anna"}).text]
    if "green tea" not in answers[0]:
        s.known.pop(first)
        second = s.find([name for name in wanted if name != first], "search my notes", "search the knowledge graph")
        answers.append(s.do(second, {"query": "Anna"}).text)
    need("green tea" in answers[-1], f"{answers}")


@task("A wish for which there is no tool")
def nothing(s, place):
    """Order a pizza for tonight."""
    for query in ("order a pizza", "food delivery"):
        found = s.search(query)
        need(found["confidence"] != "high", f"`{query}` is answered with confidence high: {found['results'][0]['name']}")


@task("A link that a server gave")
def link(s, place):
    """What does the text resource of the test server say?"""
    links = s.find("everything.get-resource-links", "links to resources of the test server")
    answer = s.do(links, {"count": 2})
    uri = next(block["uri"] for block in answer.blocks if block.get("uri", "").endswith("text/2"))
    read = s.find("gateway.read_resource", "read a resource link by its uri", "read a resource")
    need("plaintext" in s.do(read, {"uri": uri}).text, "not read")


# --- what the tasks work on -----------------------------------------------------------------------


def repository(place, name):
    """A repository with two commits of two people."""
    repo = place.path(f"work/{name}")
    repo.mkdir()
    place.git(repo, "init", "-q")
    (repo / "page.html").write_text("<h1>Hello</h1>\n")
    place.git(repo, "add", ".")
    place.git(repo, "commit", "-qm", "First page")
    (repo / "page.html").write_text("<h1>Hello</h1>\n<p>More</p>\n")
    place.git(repo, "commit", "-qam", "Longer page", "--author", "Ben <ben@example.com>", "--date", "2026-11-20T10:00:00Z")
    return repo


def big_log(place):
    """A log of 3 MB with one fault in it."""
    lines = []
    for n in range(38_000):
        what = f"INFO request {n} served in {n * 7919 % 400} ms by worker-{n % 7} from 10.0.{n % 255}.{n % 199}"
        if n == 29_417:
            what = "ERROR payment 4711 refused: card expired"
        lines.append(f"2026-11-{1 + n // 2000:02}T{n % 24:02}:{n % 60:02}:00Z {what}\n")
    text = "".join(lines)
    place.path("work/server.log").write_text(text)
    return text
