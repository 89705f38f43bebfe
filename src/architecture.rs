//! Checks ARCHITECTURE.md's map against the workspace: what each crate uses, its rooms, its size, that the
//! rooms of a crate form no cycles; that no dependency is unused; and that no value from outside is changed
//! by index.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;
use toml_edit::{DocumentMut, TableLike};

/// The longest crate, in lines of code and comments without tests.
const MAX_CRATE: usize = 20_000;

/// Names, and what each uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// A crate of the workspace.
struct Crate {
    /// Its name without `nonet-`.
    name: String,
    folder: PathBuf,
    manifest: DocumentMut,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the crates of the workspace; the package of the program is `nonet`.
fn crates() -> Vec<Crate> {
    let mut folders = vec![root().to_path_buf()];
    folders
        .extend(fs::read_dir(root().join("crates")).expect("a folder").flatten().map(|entry| entry.path()));
    folders.sort();
    let read = |folder: PathBuf| {
        let text = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        let manifest: DocumentMut = text.parse().expect("TOML");
        let name = manifest["package"]["name"].as_str().expect("a name").trim_start_matches("nonet-").into();
        Crate { name, folder, manifest }
    };
    folders.into_iter().map(read).collect()
}

impl Crate {
    /// Returns the keys of all tables of dependencies: for every system or one, for the program or the tests.
    fn dependencies(&self, with_tests: bool) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut add = |table: &dyn TableLike| {
            for key in ["dependencies", "dev-dependencies"] {
                let dependencies = table.get(key).and_then(|table| table.as_table_like());
                if let Some(dependencies) = dependencies.filter(|_| with_tests || key == "dependencies") {
                    found.extend(dependencies.iter().map(|(name, _)| name.to_string()));
                }
            }
        };
        add(self.manifest.as_table());
        let systems = self.manifest.get("target").and_then(|table| table.as_table_like());
        for (_, system) in systems.into_iter().flat_map(TableLike::iter) {
            add(system.as_table_like().expect("a table"));
        }
        found
    }

    /// Returns what the table of crates calls its uses.
    fn uses(&self) -> BTreeSet<String> {
        let own = |name: String| name.strip_prefix("nonet-").map(String::from);
        self.dependencies(false).into_iter().filter_map(own).collect()
    }

    fn sources(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        sources(&self.folder.join("src"), &mut found);
        found
    }

    /// Returns the rooms, each with the rooms that it uses.
    fn rooms(&self) -> Uses {
        let src = self.folder.join("src");
        let mut rooms = Uses::new();
        for file in self.sources() {
            if let Some(room) = room(&src, &file) {
                rooms.entry(room).or_default().extend(names(&code(&file)));
            }
        }
        let all: BTreeSet<String> = rooms.keys().cloned().collect();
        for (room, used) in &mut rooms {
            used.retain(|name| name != room && all.contains(name));
        }
        rooms
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
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

/// Parses the rows of ARCHITECTURE.md that begin with a name in code quotes: the name, and the third cell, if
/// there is one.
fn rows() -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("readable");
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let name = cells.first()?.strip_prefix('`')?.strip_suffix('`')?;
        Some((name.to_string(), cells.get(2).copied().unwrap_or_default().to_string()))
    });
    rows.collect()
}

#[test]
fn the_table_of_crates_is_what_cargo_knows() {
    let table: Uses = rows()
        .into_iter()
        .map(|(name, uses)| {
            (name, uses.split(", ").filter(|name| !name.is_empty()).map(Into::into).collect())
        })
        .collect();
    for own in crates() {
        let told = table.get(&own.name).unwrap_or_else(|| panic!("no row for the crate `{}`", own.name));
        assert_eq!(
            told,
            &own.uses(),
            "what `{}` uses: ARCHITECTURE.md on the left, Cargo.toml on the right",
            own.name
        );
    }
}

#[test]
fn every_room_of_a_larger_crate_has_a_row() {
    let told: BTreeSet<String> =
        rows().into_iter().map(|(name, _)| name).filter(|name| name.contains("::")).collect();
    let mut rooms = BTreeSet::new();
    for own in crates() {
        let lib = fs::read_to_string(own.folder.join("src/lib.rs")).unwrap_or_default();
        let public = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
        rooms.extend(public.map(|room| format!("{}::{room}", own.name)));
    }
    // The modules of these are parts of one room.
    rooms.retain(|room| {
        !["base::", "core::", "hosts::", "rest::", "sandbox::", "schema::", "search::", "state::", "wire::"]
            .iter()
            .any(|of| room.starts_with(of))
    });
    assert_eq!(told, rooms, "the rows on the left, the `pub mod` lines on the right");
}

#[test]
fn every_file_that_the_map_names_is_there() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("readable");
    let named = Regex::new(r"`([a-z_]+)/([a-z_/]+\.rs)`").expect("a pattern");
    let gone: Vec<String> = named
        .captures_iter(&text)
        .filter(|found| {
            let (first, rest) = (&found[1], &found[2]);
            let places = [
                format!("crates/{first}/src/{rest}"),
                format!("src/{first}/{rest}"),
                format!("{first}/{rest}"),
            ];
            !places.iter().any(|place| root().join(place).exists())
        })
        .map(|found| found[0].to_string())
        .collect();
    assert!(gone.is_empty(), "{gone:?}");
}

#[test]
fn no_rooms_use_each_other_in_a_circle() {
    for own in crates().into_iter().filter(|own| ["text", "servers", "parts", "nonet"].contains(&&*own.name))
    {
        let mut left = own.rooms();
        // Removes rooms that use no remaining room, until none is left to remove.
        while let Some(leaf) = left.iter().find(|(_, used)| used.is_empty()).map(|(room, _)| room.clone()) {
            left.remove(&leaf);
            for used in left.values_mut() {
                used.remove(&leaf);
            }
        }
        assert!(
            left.is_empty(),
            "in `{}` these use each other in circles, or use rooms that do: {left:#?}",
            own.name
        );
    }
}

#[test]
fn no_crate_is_too_large_to_know() {
    for own in crates() {
        let is_test = |file: &Path| file.iter().any(|part| part == "tests" || part == "tests.rs");
        let lines: usize = own
            .sources()
            .iter()
            .filter(|file| !is_test(file))
            .map(|file| fs::read_to_string(file).expect("readable"))
            .map(|text| text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default().lines().count())
            .sum();
        assert!(lines <= MAX_CRATE, "`{}` has {lines} lines", own.name);
    }
}

#[test]
fn every_dependency_is_used() {
    let mut unused = Vec::new();
    for own in crates() {
        let mut files = own.sources();
        if own.name == "nonet" {
            ["tests", "benches", "examples"]
                .iter()
                .for_each(|folder| sources(&own.folder.join(folder), &mut files));
        }
        let code: String = files.iter().map(|file| fs::read_to_string(file).expect("readable")).collect();
        for name in own.dependencies(true) {
            let word = name.replace('-', "_");
            let used = Regex::new(&format!(r"\b{word}(::|!| as |;)")).expect("a pattern");
            if !used.is_match(&code) {
                unused.push(format!("{}: {name}", own.name));
            }
        }
    }
    assert!(unused.is_empty(), "take these out of Cargo.toml: {unused:#?}");
}

/// Returns the lines that change a JSON value by index although the value may be no object: an index
/// assignment panics there. A value is known to be one if the nearest binding of its name is a `let` of a
/// value that this process builds.
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
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    sources(&root().join("crates"), &mut files);
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
