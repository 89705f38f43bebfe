//! Edits, byte for byte.

use proptest::{prelude::*, sample::subsequence};

use super::*;
use crate::text::Text;

const BLOCK: &str = "[servers.new]\ncommand = \"n\"\n";

/// Edits a text as a file of servers.toml is edited.
fn edited(text: &str, edit: impl FnOnce(&mut DocumentMut)) -> String {
    let text = Text::new(Some(text.as_bytes()), Path::new("f")).unwrap();
    let mut document = parse(text.plain(), Path::new("f")).unwrap().into_mut();
    edit(&mut document);
    String::from_utf8(text.with(&written(&document, text.plain()))).unwrap()
}

fn with(text: &str) -> String {
    let entry = Table::from_iter([("command", toml_edit::value("n"))]);
    edited(text, |document| add(document, "servers", "new", entry, ""))
}

fn without(text: &str, name: &str) -> String {
    edited(text, |document| remove(document, "servers", name))
}

fn switched(text: &str, name: &str, enabled: bool) -> String {
    edited(text, |document| set_first(&mut document["servers"][name], "enabled", enabled.into()))
}

fn content(text: &str) -> Value {
    value(parse(text, Path::new("f")).unwrap().as_item())
}

#[test]
fn a_server_is_cut_out_with_what_belongs_to_it() {
    let check = |text: &str, expected: &str| {
        assert_eq!(without(text, "x"), expected, "{text}");
        let crlf = |text: &str| text.replace('\n', "\r\n");
        assert_eq!(without(&crlf(text), "x"), crlf(expected), "with CRLF: {text}");
    };
    check("[servers.x]\ncommand = 'c'\n", "");
    check("[servers.x]\ncommand = 'c'", "");
    check(
        "[servers.a]\na = 1\n\n[servers.x]\nx = 1\n\n[servers.b]\nb = 1\n",
        "[servers.a]\na = 1\n\n[servers.b]\nb = 1\n",
    );
    check(
        "[servers.a]\na = 1\n[servers.x]\nx = 1\n[servers.b]\nb = 1",
        "[servers.a]\na = 1\n[servers.b]\nb = 1",
    );
    check("[servers.a]\na = 1 # one\n\n[servers.x]\nx = 1\n\n\n", "[servers.a]\na = 1 # one\n");
    // Its sub-tables, wherever they are.
    check(
        "[servers.x]\nx = 1\n\n[servers.x.env]\nA = 'b'\n\n[servers.x.tools.y]\nrisk = 'low'\n\n[servers.xy]\nb = 1\n",
        "[servers.xy]\nb = 1\n",
    );
    check(
        "[servers.x]\nx = 1\n\n[servers.b]\nb = 1\n\n[[servers.x.setup]]\ntool = 't'\n\n[[servers.x.setup]]\ntool = 'u'\n\n[gateway]\ng = 1\n",
        "[servers.b]\nb = 1\n\n[gateway]\ng = 1\n",
    );
    check(
        "[servers.x.tools.y]\nrisk = 'low'\n[servers.b]\nb = 1\n[servers.x]\nx = 1\n",
        "[servers.b]\nb = 1\n",
    );
    // Comments directly above and below a server, and between its tables.
    check(
        "# The file.\n\n# All\n# of x.\n[servers.x] # here\n# In x.\nx = 1 # too\n# y = 2\n\n# Env.\n[servers.x.env]\nA = 'b'\n\n# Of b.\n[servers.b]\nb = 1\n",
        "# The file.\n\n# Of b.\n[servers.b]\nb = 1\n",
    );
    // Separated comments are not part of the server.
    check(
        "[servers.a]\na = 1\n\n# --- remote ---\n\n[servers.x]\nx = 1\n\n# --- local ---\n\n[servers.b]\nb = 1\n",
        "[servers.a]\na = 1\n\n# --- remote ---\n\n# --- local ---\n\n[servers.b]\nb = 1\n",
    );
    check("[servers.x]\nx = 1\n# Of b.\n[servers.b]\nb = 1\n", "# Of b.\n[servers.b]\nb = 1\n");
    check("[servers.a]\na = 1\n\n[servers.x]\nx = 1\n\n# The end.\n", "[servers.a]\na = 1\n\n# The end.\n");
    // What looks like a header is not one.
    check(
        "[servers.a]\na = '''\n[servers.x]\n'''\nb = [\n  [1],\n[2],\n]\n# [servers.x]\n\n[servers.\"x\"]\nx = '''\n[servers.b]\n'''\n",
        "[servers.a]\na = '''\n[servers.x]\n'''\nb = [\n  [1],\n[2],\n]\n# [servers.x]\n",
    );
    // Other forms of a table.
    check(
        "[servers]\na = { a = 1 }\n# Of x.\nx = { command = 'c', env = { A = 'b' } } # one\nb.b = 1\n",
        "[servers]\na = { a = 1 }\nb.b = 1\n",
    );
    check(
        "[servers]\nx.command = 'c'\nb.b = 1\nx.args = [\n  '1',\n]\n\n[servers.x.env]\nA = 'b'\n",
        "[servers]\nb.b = 1\n",
    );
    check(
        "servers.a.a = 1\nservers.x.x = 1\nlast = 1\nservers.b.b = 1\n",
        // The dotted keys of a table are written together.
        "servers.a.a = 1\nservers.b.b = 1\nlast = 1\n",
    );
    check("servers.x = { a = 1 }\n[gateway]\n", "[gateway]\n");
    check("servers = { a = {}, x = { b = [1, 2] }, c = {} }\n", "servers = { a = {}, c = {} }\n");
    check("servers = { x = { b = 1 }, c = {} } # one\n", "servers = { c = {} } # one\n");
    check("servers = { c = {}, x = { b = 1 } }\n", "servers = { c = {} }\n");
    check("servers = { x = { b = 1 } }\n", "servers = {}\n");
    check("servers = { x.a = 1, c.a = 2, x.b.d = 3 }\n", "servers = { c.a = 2}\n");
}

#[test]
fn a_server_is_switched_by_one_word_or_one_line() {
    let check = |text: &str, off: &str, on: &str| {
        let crlf = |text: &str| text.replace('\n', "\r\n");
        assert_eq!(switched(text, "x", false), off, "{text}");
        assert_eq!(switched(off, "x", true), on, "{off}");
        if text.contains('\n') {
            assert_eq!(switched(&crlf(text), "x", false), crlf(off), "with CRLF: {text}");
        }
    };
    check(
        "# c\n[servers.x] # d\n# e\ncommand = 'c'\n",
        "# c\n[servers.x] # d\nenabled = false\n# e\ncommand = 'c'\n",
        "# c\n[servers.x] # d\nenabled = true\n# e\ncommand = 'c'\n",
    );
    check(
        "[servers.x]\n  command = 'c'\n[servers.x.env]\nA = 'b'",
        "[servers.x]\n  enabled = false\n  command = 'c'\n[servers.x.env]\nA = 'b'",
        "[servers.x]\n  enabled = true\n  command = 'c'\n[servers.x.env]\nA = 'b'",
    );
    check(
        "[servers.x]\ncommand = 'c'\nenabled  =  true # why\n",
        "[servers.x]\ncommand = 'c'\nenabled  =  false # why\n",
        "[servers.x]\ncommand = 'c'\nenabled  =  true # why\n",
    );
    check("[servers.x]", "[servers.x]\nenabled = false\n", "[servers.x]\nenabled = true\n");
    check(
        "servers = { a = {}, x = { command = 'c' } }\n",
        "servers = { a = {}, x = { enabled = false, command = 'c' } }\n",
        "servers = { a = {}, x = { enabled = true, command = 'c' } }\n",
    );
    check(
        "[servers]\nx = {command = 'c'} # d\n",
        "[servers]\nx = { enabled = false, command = 'c' } # d\n",
        "[servers]\nx = { enabled = true, command = 'c' } # d\n",
    );
    check("servers.x = {}\n", "servers.x = { enabled = false }\n", "servers.x = { enabled = true }\n");
    check(
        "[servers]\na.a = 1\n  # c\n  x.env.A = 'b'\n  x.command = 'c'\n",
        "[servers]\na.a = 1\n  x.enabled = false\n  # c\n  x.env.A = 'b'\n  x.command = 'c'\n",
        "[servers]\na.a = 1\n  x.enabled = true\n  # c\n  x.env.A = 'b'\n  x.command = 'c'\n",
    );
    check(
        "servers.\"x\".command = 'c'\n",
        "servers.\"x\".enabled = false\nservers.\"x\".command = 'c'\n",
        "servers.\"x\".enabled = true\nservers.\"x\".command = 'c'\n",
    );
    check(
        "servers = { x.command = 'c', b = {} }\n",
        "servers = { x.enabled = false, x.command = 'c', b = {} }\n",
        "servers = { x.enabled = true, x.command = 'c', b = {} }\n",
    );
}

#[test]
fn a_server_is_put_behind_the_last_one() {
    let check = |text: &str, expected: &str| {
        assert_eq!(with(text), expected, "{text}");
        assert_eq!(content(expected)["servers"]["new"]["command"], "n");
    };
    check("", BLOCK);
    check("# Only this.\n", &format!("# Only this.\n\n{BLOCK}"));
    check("# Only this.", &format!("# Only this.\n\n{BLOCK}"));
    check("[gateway]\ng = 1\n\n", &format!("[gateway]\ng = 1\n\n{BLOCK}"));
    check(
        "[servers.a]\na = 1 # one\n# two\n\n# Of all.\n\n[gateway]\ng = 1\n",
        &format!("[servers.a]\na = 1 # one\n# two\n\n{BLOCK}\n# Of all.\n\n[gateway]\ng = 1\n"),
    );
    check(
        "[servers.a]\na = 1\n[servers.a.env]\nA = 'b'\n[gateway]\ng = 1",
        &format!("[servers.a]\na = 1\n[servers.a.env]\nA = 'b'\n\n{BLOCK}\n[gateway]\ng = 1"),
    );
    check("[servers]\na.a = 1\n[gateway]\n", &format!("[servers]\na.a = 1\n\n{BLOCK}\n[gateway]\n"));
    check("servers.a = { a = 1 }\n", &format!("servers.a = {{ a = 1 }}\n\n{BLOCK}"));
    check(
        "servers.a.a = 1\nservers.c.a = 1\nb = 2\n",
        &format!("servers.a.a = 1\nservers.c.a = 1\nb = 2\n\n{BLOCK}"),
    );
    check("servers = {}\n", "servers = { new = { command = \"n\" } }\n");
    check("servers = { a = {} } # c\n", "servers = { a = {}, new = { command = \"n\" } } # c\n");
    check("servers = {a = {}}\n", "servers = { a = {}, new = { command = \"n\" } }\n");
    let crlf = with("[servers.a]\r\na = 1\r\n");
    assert_eq!(crlf, format!("[servers.a]\r\na = 1\r\n\r\n{}", BLOCK.replace('\n', "\r\n")));
}

/// Pieces of a file. They combine in any order, and none contains `new` or `x`.
const PIECES: [&str; 12] = [
    "[servers.a]\ncommand = 'a'\n\n",
    "# Of b.\n[servers.b] # b\n  command = 'b' # c\n\n[servers.b.tools.\"t.u\"]\nrisk = 'low'\n\n",
    "\n# --- a heading ---\n\n",
    "[profiles.p]\ncategories = [\n  # the first\n  'a',\n]\n\n\n",
    "[servers.c]\nargs = ['''\n[servers.x]\n''', \"\"\"\\\n  # no comment\n\"\"\"]\n# d = 1\n\n",
    "[servers.d.env]\nA = \"b\"\n",
    "[[apps.e.steps]]\ntool = \"a.b\"\n\n[[apps.e.steps]]\ntool = \"b.c\"\n\n",
    "[servers.f]\nenv = { A = 'b', \"C\" = \"d\" }\n# right below\n\n",
    "[servers.\"g h\"]\n\t\n\turl = \"https://é.example\" \n",
    "[gateway]\n[embedder]\n",
    "[servers.i]\ni.j.k = 1\ni.m = 3\nl = 2\n\n",
    "# at the end\n",
];

proptest! {
    #[test]
    fn what_is_added_and_removed_leaves_no_trace(
        pieces in subsequence(PIECES.to_vec(), 0..=PIECES.len()).prop_shuffle(),
        crlf in any::<bool>(),
    ) {
        let ends = |text: String| if crlf { text.replace('\n', "\r\n") } else { text };
        let text = ends(pieces.concat());
        let added = with(&text);
        // Every old line is still there, in the same order.
        let mut lines = added.split_inclusive('\n');
        prop_assert!(text.split_inclusive('\n').all(|line| lines.any(|kept| kept == line)), "{added}");
        let mut expected = content(&text);
        expected["servers"]["new"] = serde_json::json!({ "command": "n" });
        prop_assert_eq!(content(&added), expected.clone());
        let off = switched(&added, "new", false);
        expected["servers"]["new"] = serde_json::json!({ "enabled": false, "command": "n" });
        prop_assert_eq!(content(&off), expected);
        let removed = without(&off, "new");
        // A blank line that separated the new server may be left.
        let lines = |text: &str| -> Vec<String> {
            text.split_inclusive('\n').filter(|line| !is_blank(line)).map(String::from).collect()
        };
        prop_assert_eq!(lines(&removed), lines(&text));
    }
}
