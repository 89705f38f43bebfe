//! The pages for readers: every link leads somewhere, every page is in the book, and what they quote is true.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use nonet_config::{self as config, ValueSources};
use nonet_meta as meta;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns every Markdown page below a folder.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(pages(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Returns the lines of a page outside fenced code.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((number + 1, line));
        }
    }
    lines
}

/// Returns the anchors of headings, as GitHub and mdBook build them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).into_iter().filter_map(|(_, line)| {
        let heading = line.trim_start_matches('#');
        (heading.len() < line.len() && heading.starts_with(' ')).then(|| heading.trim())
    });
    let anchors = headings.map(|heading| {
        let letters = heading.to_lowercase().replace(' ', "-");
        let name: String = letters.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}-{}", *count - 1) }
    });
    anchors.collect()
}

/// Returns the link targets of a page, with their lines. Skips inline code.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut whole = String::new();
    let mut at = Vec::new();
    for (number, line) in prose(text) {
        at.push((whole.len(), number));
        let mut code = false;
        whole.extend(line.chars().map(|c| {
            code ^= c == '`';
            if code { ' ' } else { c }
        }));
        whole.push('\n');
    }
    for (start, _) in whole.match_indices("](") {
        let Some(end) = whole[start..].find(')') else { continue };
        let target = whole[start + 2..start + end].trim();
        let line = at.iter().rev().find(|(from, _)| *from <= start).map_or(0, |(_, line)| *line);
        found.push((line, target.split_whitespace().next().unwrap_or_default().to_string()));
    }
    found
}

/// Removes `..` from a path.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let mut all = pages(&root().join("docs"));
    all.extend(["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|name| root().join(name)));
    let mut faults = Vec::new();
    let mut count = 0;
    for page in &all {
        let text = fs::read_to_string(page).unwrap();
        for (line, target) in links(&text) {
            if target.contains("://") || target.starts_with("mailto:") || target.is_empty() {
                continue;
            }
            count += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = if file.is_empty() { page.clone() } else { plain(&page.parent().unwrap().join(file)) };
            let place = page.strip_prefix(root()).unwrap().display();
            if !file.exists() {
                faults.push(format!("{place}:{line}: there is no {target}"));
            } else if !anchor.is_empty()
                && file.extension().is_some_and(|extension| extension == "md")
                && !anchors(&fs::read_to_string(&file).unwrap()).contains(anchor)
            {
                faults.push(format!("{place}:{line}: no heading is called #{anchor} in {}", file.display()));
            }
        }
    }
    assert!(faults.is_empty() && count > 100, "{count} links\n{}", faults.join("\n"));
}

#[test]
fn every_page_is_in_the_book_once() {
    let folder = root().join("docs");
    let summary = links(&fs::read_to_string(folder.join("SUMMARY.md")).unwrap());
    let mut listed: Vec<PathBuf> = summary.iter().map(|(_, target)| folder.join(target)).collect();
    listed.sort();
    let mut there = pages(&folder);
    there.retain(|page| !page.ends_with("SUMMARY.md"));
    assert_eq!(listed, there);
    let book = fs::read_to_string(root().join("book.toml")).unwrap();
    assert!(book.contains("src = \"docs\""), "{book}");
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}

#[test]
fn the_ten_keys_of_the_first_page_are_a_configuration_without_a_fault() {
    let page = read("docs/guide.md");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    for number in 1..=10 {
        assert!(text.contains(&format!("# {number}. ")), "key {number}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(config::FILE_NAME);
    fs::write(&file, text).unwrap();
    let token = |name: &str| (name == "DOCS_TOKEN").then(|| "a-token-of-the-docs".to_string());
    let loaded = config::load(&file, ValueSources { env: &token, ..ValueSources::NONE }).unwrap();
    assert_eq!((loaded.faults, loaded.warnings), (Vec::new(), Vec::new()));
}

#[test]
fn the_size_of_the_nine_is_quoted_as_it_is() {
    let bytes: usize = meta::definitions().iter().map(|tool| tool.to_string().len()).sum();
    let quoted = format!("clients read {bytes} bytes (about {} tokens)", bytes / 4);
    assert!(read("docs/clients.md").contains(&quoted), "docs/clients.md: {quoted}");
}

/// Returns the cells of the row of a table that begins so.
fn row(page: &str, beginning: &str) -> Vec<String> {
    let line = page.lines().find(|line| line.starts_with(beginning));
    let line = line.unwrap_or_else(|| panic!("no row begins with {beginning}"));
    line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('*').to_string()).collect()
}

/// `tests/tasks/run` writes the page of the tasks; the README quotes it.
#[test]
fn the_readme_quotes_the_tasks_as_they_were_counted() {
    let (tasks, readme) = (read("docs/tasks.md"), read("README.md"));
    let mut quoted = Vec::new();
    for kind in ["| **all 30**", "| **all 15**"] {
        let [_, calls, bytes, _, done] = &row(&tasks, kind)[..] else { panic!("{kind} has five columns") };
        quoted.push(format!("{done} done in {calls} calls, {bytes} bytes read"));
    }
    let both = row(&tasks, "| **all 20**");
    quoted.push(format!(
        "{} done in {} calls, {} bytes read; with scripts in {} calls, {} bytes read",
        both[7], both[1], both[3], both[2], both[4]
    ));
    quoted.push(format!("{} bytes |", row(&tasks, "| what each session begins with")[1]));
    let all = row(&tasks, "| the definitions of all ");
    let number = |cell: &str| cell.split(' ').find(|word| word.parse::<usize>().is_ok()).unwrap().to_string();
    quoted.push(format!("{} bytes for the {} tools of 30 servers", all[1], number(&all[0])));
    for quoted in quoted {
        assert!(readme.contains(&quoted), "README.md does not say: {quoted}");
    }
}
