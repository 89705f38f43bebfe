//! Checks ARCHITECTURE.md's table of rooms against the `use` lines of the code, that rooms form no cycles, and that no value
//! from outside is changed by index.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

/// What each room uses, by name.
type Uses = BTreeMap<String, BTreeSet<String>>;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the room of a source file; none for tests, the crate root and the program.
fn room(src: &Path, file: &Path) -> Option<String> {
    let inside = file.strip_prefix(src).ok()?;
    let is_test = inside.iter().any(|part| part == "tests" || part == "tests.rs");
    let first = inside.iter().next()?.to_str()?.trim_end_matches(".rs");
    (!is_test && !["lib", "main", "architecture"].contains(&first)).then(|| first.to_string())
}

/// Returns the code of a file, without comments and without the tests at its end.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("readable");
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Returns the names after `crate::` in the code: in paths, and on the first level of `use crate::{...}`.
fn names(code: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut found = BTreeSet::new();
    for (at, matched) in code.match_indices("crate::") {
        let rest = &code[at + matched.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            found.insert(word(rest));
            continue;
        };
        let (mut depth, mut begins) = (0, true);
        for (at, char) in list.char_indices() {
            if begins && depth == 0 {
                found.insert(word(&list[at..]));
                begins = false;
            }
            match char {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' => begins = true,
                _ => {}
            }
        }
    }
    // A trailing comma has no name after it.
    found.remove("");
    found
}

fn uses() -> Uses {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut uses = Uses::new();
    for file in files {
        if let Some(room) = room(&src, &file) {
            uses.entry(room).or_default().extend(names(&code(&file)));
        }
    }
    let rooms: BTreeSet<String> = uses.keys().cloned().collect();
    for (room, used) in &mut uses {
        used.retain(|name| name != room && rooms.contains(name));
    }
    uses
}

/// Parses the table of rooms: a row has the room in code quotes, its purpose, and the rooms that it uses.
fn documented() -> Uses {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md");
    let text = fs::read_to_string(file).expect("readable");
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.split(" | ").collect();
        let [room, _, used] = cells.as_slice() else { return None };
        let used = used.trim_end_matches('|').split(',').map(|name| name.trim().trim_matches('`'));
        let used = used.filter(|name| !name.is_empty()).map(String::from).collect();
        Some((room.trim_end_matches('`').to_string(), used))
    });
    rows.collect()
}

#[test]
fn the_table_of_rooms_is_what_the_code_uses() {
    let (code, table) = (uses(), documented());
    for (room, used) in &code {
        let told =
            table.get(room).unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for `{room}`: {used:?}"));
        assert_eq!(
            told, used,
            "what `{room}` uses: ARCHITECTURE.md on the left, its `use` lines on the right"
        );
    }
    let gone: Vec<_> = table.keys().filter(|room| !code.contains_key(*room)).collect();
    assert!(gone.is_empty(), "ARCHITECTURE.md has rows for rooms that are not there: {gone:?}");
}

#[test]
fn no_rooms_use_each_other_in_a_circle() {
    let mut left = uses();
    // Removes rooms that use no remaining room, until none is left to remove.
    while let Some(leaf) = left.iter().find(|(_, used)| used.is_empty()).map(|(room, _)| room.clone()) {
        left.remove(&leaf);
        for used in left.values_mut() {
            used.remove(&leaf);
        }
    }
    assert!(left.is_empty(), "these use each other in circles, or use rooms that do: {left:#?}");
}

/// Returns the lines that change a JSON value by index although the value may be no object: an index assignment panics there.
/// A value is known to be one if the nearest binding of its name is a `let` of a value that this process builds.
fn changed_by_index(code: &str) -> Vec<String> {
    let place = r#"([a-z_]+)(?:\.[a-z_]+)*\)?(?:\[(?:"[^"]+"|[A-Z_]+|key|name)\])+"#;
    let change =
        format!(r"{place}(?: \+?= |\.(?:take\(\)|as_(?:array|object)_mut\(\)|get_mut\())|&mut {place}");
    let change = Regex::new(&change).expect("a pattern");
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(changed) = change.captures(line) else { continue };
        let Some(name) = changed.get(1).or(changed.get(2)).map(|name| name.as_str()) else { continue };
        let binding = format!(
            r"\b(let mut {name}\b|mut {name}: |{name}: &mut |for (mut )?{name} in)|[(|,] ?(mut )?{name}[)|,]"
        );
        let binding = Regex::new(&binding).expect("a pattern");
        let bound = lines[..at].iter().rev().find(|line| binding.is_match(line));
        if bound.is_none_or(|bound| !bound.contains("let mut ") || bound.contains("serde_json::from")) {
            found.push(line.trim().to_string());
        }
    }
    found
}

#[test]
fn no_value_from_outside_is_changed_by_index() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    sources(&root.join("crates"), &mut files);
    let is_test = |file: &&PathBuf| {
        !file.iter().any(|part| ["tests", "tests.rs", "architecture.rs"].iter().any(|test| part == *test))
    };
    let found: Vec<String> = files
        .iter()
        .filter(is_test)
        .flat_map(|file| {
            changed_by_index(&code(file)).into_iter().map(move |line| format!("{}: {line}", file.display()))
        })
        .collect();
    assert!(found.is_empty(), "use `json::set_member` or `json::take_member` here: {found:#?}");
}

#[test]
fn changes_by_index_are_found() {
    let check = |code: &str, expected: usize| assert_eq!(changed_by_index(code).len(), expected, "{code}");
    check("let mut answer = json!({});\nanswer[\"a\"] = json!(1);", 0);
    check("let mut answer = told();\nanswer[\"a\"][\"b\"] += 1;\nanswer[KEY] = json!(1);", 0);
    check("let mut answer: Value = serde_json::from_str(text)?;\nanswer[\"a\"] = json!(1);", 1);
    check("fn add(params: &mut Value) {\nparams[\"message\"] = json!(1);", 1);
    check("for (key, mut request) in requests {\nprepare(&mut request[\"params\"]);", 1);
    check("Some(mut fact) => fact[\"a\"].take(),", 1);
    check("let kept = fact[\"a\"].clone();\nif fact[\"a\"] == 5 {}", 0);
}

#[test]
fn names_are_found_in_paths_and_in_lists() {
    let code =
        "use crate::text::clip;\nuse crate::{\n    a::{b, c::{d}},\n    e,\n};\nlet x = crate::f::g();";
    assert_eq!(names(code).into_iter().collect::<Vec<_>>(), ["a", "e", "f", "text"]);
}
