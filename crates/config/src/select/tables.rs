//! Tables in jq filters: CSV, TSV and Markdown, in and out; and functions for joins that jq has and jaq
//! lacks.
//!
//! The cells of a table that is read are text, so that `007` stays `007`; `tonumber` makes a number of one.

use std::collections::BTreeMap;

use jaq_core::{
    Error, RunPtr, data,
    load::{self, parse::Def},
    native::{self, bome, unary, v},
};
use jaq_json::{Map, Val};

type Data = data::JustLut<Val>;
type Fault = Error<Val>;
type Rows = Vec<Vec<String>>;

/// `from...` gives an object for each row, named by the header; `...rows` gives all rows as arrays.
const DEFS: &str = r#"
def csvrows: csvrows(",");
def fromcsv: csvrows | row_objects;
def fromcsv($separator): csvrows($separator) | row_objects;
def fromtsv: tsvrows | row_objects;
def frommd: mdrows | row_objects;
def @csv: csv_row;
def @tsv: tsv_row;
def INDEX(rows; key): reduce rows as $row ({}; . + {($row | key | tostring): $row});
def INDEX(key): INDEX(.[]; key);
def IN(values): any(values == .; .);
def IN(source; values): any(source == values; .);
def toarray: if isarray then . else [.] end;
def trimstr($text): ltrimstr($text) | rtrimstr($text);
"#;

/// Returns the definitions that are written in jq.
pub(super) fn defs() -> impl Iterator<Item = Def<&'static str>> {
    load::parse(DEFS, |parser| parser.defs()).unwrap_or_default().into_iter()
}

/// Returns the functions behind them.
pub(super) fn funs() -> impl Iterator<Item = native::Fun<Data>> {
    let all: [native::Filter<RunPtr<Data>>; 9] = [
        ("csvrows", v(1), |cv| {
            unary(cv, |text, separator| {
                let separator = text_of(&separator)?;
                let mut chars = separator.chars();
                match (chars.next(), chars.next()) {
                    (Some(one), None) => read(&text, |text| csv_rows(text, one)),
                    _ => Err(Error::str("the separator of CSV is one character")),
                }
            })
        }),
        ("tsvrows", v(0), |cv| bome(read(&cv.1, |text| Ok(tsv_rows(text))))),
        ("mdrows", v(0), |cv| bome(read(&cv.1, md_rows))),
        ("row_objects", v(0), |cv| bome(row_objects(&cv.1))),
        ("tocsv", v(0), |cv| bome(written(&cv.1, csv_of))),
        ("totsv", v(0), |cv| bome(written(&cv.1, tsv_of))),
        ("tomd", v(0), |cv| bome(written(&cv.1, md_of))),
        ("csv_row", v(0), |cv| bome(one_row(&cv.1, ",", quoted))),
        ("tsv_row", v(0), |cv| bome(one_row(&cv.1, "\t", |cell| tsv_cell(&shown(cell))))),
    ];
    all.into_iter().map(|(name, arguments, run)| native::run::<Data>((name, arguments, run)))
}

fn text_of(value: &Val) -> Result<String, Fault> {
    match value {
        Val::TStr(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        other => Err(Error::typ(other.clone(), "string")),
    }
}

fn text(text: String) -> Val {
    Val::utf8_str(text)
}

/// Reads the rows of a text.
fn read(value: &Val, rows: impl FnOnce(&str) -> Result<Rows, &'static str>) -> Result<Val, Fault> {
    let given = text_of(value)?;
    let rows = rows(given.strip_prefix('\u{feff}').unwrap_or(&given)).map_err(Error::str)?;
    Ok(rows.into_iter().map(|row| row.into_iter().map(text).collect::<Val>()).collect())
}

/// Reads CSV with quoted cells. Blank lines are no rows.
fn csv_rows(given: &str, separator: char) -> Result<Rows, &'static str> {
    let (mut rows, mut row, mut cell) = (Rows::new(), Vec::new(), String::new());
    let (mut is_quoted, mut is_begun) = (false, false);
    let mut chars = given.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if is_quoted && chars.next_if_eq(&'"').is_some() => cell.push('"'),
            '"' if is_quoted => is_quoted = false,
            c if is_quoted => cell.push(c),
            '"' if cell.is_empty() => (is_quoted, is_begun) = (true, true),
            '\r' if chars.peek() == Some(&'\n') => {}
            '\n' => {
                if is_begun {
                    row.push(std::mem::take(&mut cell));
                    rows.push(std::mem::take(&mut row));
                }
                is_begun = false;
            }
            c => {
                is_begun = true;
                match c == separator {
                    true => row.push(std::mem::take(&mut cell)),
                    false => cell.push(c),
                }
            }
        }
    }
    if is_quoted {
        return Err("the CSV ends inside a quoted value");
    }
    if is_begun {
        row.push(cell);
        rows.push(row);
    }
    Ok(rows)
}

/// Reads lines of cells between tabs, with the escapes of `@tsv`.
fn tsv_rows(given: &str) -> Rows {
    let cell = |cell: &str| {
        let (mut out, mut chars) = (String::new(), cell.chars());
        while let Some(c) = chars.next() {
            match (c, c == '\\') {
                (_, true) => match chars.next() {
                    Some('t') => out.push('\t'),
                    Some('n') => out.push('\n'),
                    Some('r') => out.push('\r'),
                    Some('\\') | None => out.push('\\'),
                    Some(other) => out.extend(['\\', other]),
                },
                (c, false) => out.push(c),
            }
        }
        out
    };
    let lines = given.lines().filter(|line| !line.is_empty());
    lines.map(|line| line.split('\t').map(cell).collect()).collect()
}

/// Reads the first Markdown table of a text, without its line of dashes.
fn md_rows(given: &str) -> Result<Rows, &'static str> {
    let lines: Vec<&str> = given.lines().map(str::trim).collect();
    let is_dashes = |line: &str| {
        line.contains('-')
            && md_cells(line).iter().all(|cell| {
                let dashes = cell.strip_prefix(':').unwrap_or(cell);
                let dashes = dashes.strip_suffix(':').unwrap_or(dashes);
                !dashes.is_empty() && dashes.bytes().all(|byte| byte == b'-')
            })
    };
    let begins = |pair: &[&str]| match pair {
        [header, dashes] => header.contains('|') && dashes.contains('|') && is_dashes(dashes),
        _ => false,
    };
    let Some(at) = lines.windows(2).position(begins) else {
        return Err("there is no Markdown table: a header, and below it a line such as |---|---|");
    };
    let rows = lines.iter().skip(at + 2).take_while(|line| line.contains('|'));
    Ok(lines.get(at).into_iter().chain(rows).map(|line| md_cells(line)).collect())
}

/// Splits a line of a Markdown table. `\|` is part of a cell.
fn md_cells(line: &str) -> Vec<String> {
    let line = line.strip_prefix('|').unwrap_or(line);
    let (mut cells, mut cell, mut chars) = (Vec::new(), String::new(), line.chars().peekable());
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.next_if_eq(&'|').is_some() => cell.push('|'),
            '|' => cells.push(std::mem::take(&mut cell).trim().to_string()),
            c => cell.push(c),
        }
    }
    // What follows the last line is a cell only if there is something.
    if !cell.trim().is_empty() {
        cells.push(cell.trim().to_string());
    }
    cells
}

/// Turns rows into objects whose keys are the cells of the first row. A cell that a row lacks is null;
/// columns without a name, or with the name of another one, are told apart by their numbers.
fn row_objects(rows: &Val) -> Result<Val, Fault> {
    let rows = rows_of(rows)?;
    let Some((header, rows)) = rows.split_first() else { return Ok(Val::from_iter([])) };
    let width = rows.iter().map(|row| row.len()).chain([header.len()]).max().unwrap_or(0);
    let names = (0..width).map(|at| {
        let name = header.get(at).map(shown).map(|name| name.trim().to_string()).unwrap_or_default();
        if name.is_empty() { format!("column {}", at + 1) } else { name }
    });
    let names: Vec<String> = names.collect();
    let mut counts: BTreeMap<&str, usize> = names.iter().map(|name| (name.as_str(), 0)).collect();
    let keys = names.iter().map(|name| {
        let mut count = counts.get(&**name).copied().unwrap_or_default() + 1;
        let numbered = |count: usize| if count > 1 { format!("{name} {count}") } else { name.clone() };
        // Another column may have the numbered name already.
        while count > 1 && counts.contains_key(&*numbered(count)) {
            count += 1;
        }
        counts.insert(name, count);
        text(numbered(count))
    });
    let keys: Vec<Val> = keys.collect();
    let object = |row: &&[Val]| {
        let known = keys.iter().enumerate().filter(|(at, _)| *at < header.len().max(row.len()));
        let members = known.map(|(at, key)| (key.clone(), row.get(at).cloned().unwrap_or_default()));
        Val::obj(members.collect::<Map>())
    };
    Ok(rows.iter().map(object).collect())
}

/// Returns the rows of an array of arrays.
fn rows_of(value: &Val) -> Result<Vec<&[Val]>, Fault> {
    let Val::Arr(rows) = value else { return Err(Error::typ(value.clone(), "array")) };
    rows.iter()
        .map(|row| match row {
            Val::Arr(cells) => Ok(&cells[..]),
            other => Err(Error::typ(other.clone(), "array")),
        })
        .collect()
}

/// Writes a table: an array of objects, which gets a header of all keys, an array of rows, or one object.
fn written(value: &Val, write: fn(Vec<Vec<Val>>) -> String) -> Result<Val, Fault> {
    let objects: Vec<&Map> = match value {
        Val::Obj(one) => vec![one],
        Val::Arr(all) if all.iter().any(|row| matches!(row, Val::Obj(_))) => all
            .iter()
            .map(|row| match row {
                Val::Obj(object) => Ok(&**object),
                other => Err(Error::typ(other.clone(), "object")),
            })
            .collect::<Result<_, _>>()?,
        rows => {
            let rows = rows_of(rows)?.into_iter().map(<[Val]>::to_vec);
            return Ok(text(write(rows.collect())));
        }
    };
    let mut keys = Map::<Val, ()>::default();
    keys.extend(objects.iter().flat_map(|object| object.keys().cloned().map(|key| (key, ()))));
    let header = keys.keys().cloned().collect();
    let row = |object: &&Map| keys.keys().map(|key| object.get(key).cloned().unwrap_or_default()).collect();
    Ok(text(write([header].into_iter().chain(objects.iter().map(row)).collect())))
}

/// Returns a cell as text: text unchanged, nothing for null, and anything else as JSON.
fn shown(cell: &Val) -> String {
    match cell {
        Val::Null => String::new(),
        Val::TStr(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => other.to_string(),
    }
}

/// Joins the rows to lines.
fn lines(rows: impl IntoIterator<Item = Vec<String>>, separator: &str) -> String {
    rows.into_iter().map(|row| row.join(separator) + "\n").collect()
}

fn csv_of(rows: Vec<Vec<Val>>) -> String {
    let cell = |cell: &Val, width: usize| {
        let text = shown(cell);
        let is_plain = text.trim() == text && !text.contains([',', '"', '\n', '\r']);
        // A blank line would be no row.
        let is_blank = width == 1 && text.is_empty();
        if is_plain && !is_blank { text } else { format!("\"{}\"", text.replace('"', "\"\"")) }
    };
    lines(rows.iter().map(|row| row.iter().map(|one| cell(one, row.len())).collect()), ",")
}

fn tsv_of(rows: Vec<Vec<Val>>) -> String {
    lines(rows.iter().map(|row| row.iter().map(|cell| tsv_cell(&shown(cell))).collect()), "\t")
}

fn tsv_cell(cell: &str) -> String {
    cell.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r")
}

/// Writes a Markdown table, whose first row is the header.
fn md_of(rows: Vec<Vec<Val>>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let cell = |cell: &Val| shown(cell).replace('|', "\\|").replace("\r\n", "<br>").replace('\n', "<br>");
    let mut out = String::new();
    for (at, row) in rows.iter().enumerate() {
        out.push_str(&line(row.iter().map(cell).collect()));
        if at == 0 {
            out.push_str(&line(vec!["---".into(); row.len()]));
        }
    }
    out
}

/// Writes an array as one row, as jq's `@csv` and `@tsv` do.
fn one_row(row: &Val, separator: &str, cell: fn(&Val) -> String) -> Result<Val, Fault> {
    let Val::Arr(cells) = row else { return Err(Error::typ(row.clone(), "array")) };
    if let Some(wrong) = cells.iter().find(|cell| matches!(cell, Val::Arr(_) | Val::Obj(_))) {
        return Err(Error::str(format_args!("{wrong} is not a cell of a row")));
    }
    Ok(text(cells.iter().map(cell).collect::<Vec<_>>().join(separator)))
}

/// Returns a cell as `@csv` writes it: all text is quoted.
fn quoted(cell: &Val) -> String {
    match cell {
        Val::TStr(_) => format!("\"{}\"", shown(cell).replace('"', "\"\"")),
        other => shown(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    #[track_caller]
    fn check(filter: &str, value: Value, expected: Result<Value, &str>) {
        match (super::super::run(filter, &value.to_string()), expected) {
            (Ok(got), Ok(wanted)) => assert_eq!(json!(got), json!([wanted]), "{filter}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (got, _) => panic!("{filter}: {got:?}"),
        }
    }

    #[test]
    fn csv_is_read() {
        let text =
            "\u{feff}id,name,note\r\n007,\"Ada, L.\",\"says \"\"hi\"\"\nthere\"\r\n\r\n8,Bob\n9,,x,extra\n";
        check(
            "fromcsv",
            json!(text),
            Ok(json!([
                { "id": "007", "name": "Ada, L.", "note": "says \"hi\"\nthere" },
                { "id": "8", "name": "Bob", "note": null },
                { "id": "9", "name": "", "note": "x", "column 4": "extra" },
            ])),
        );
        check("csvrows", json!("a,b\n1,2"), Ok(json!([["a", "b"], ["1", "2"]])));
        check("fromcsv(\";\") | map(.b)", json!("a;b\n1;2,5"), Ok(json!(["2,5"])));
        check("fromcsv", json!("a,a,\n1,2,3"), Ok(json!([{ "a": "1", "a 2": "2", "column 3": "3" }])));
        check("fromcsv", json!("a,a,a 2\n1,2,3"), Ok(json!([{ "a": "1", "a 3": "2", "a 2": "3" }])));
        check("fromcsv", json!(""), Ok(json!([])));
        check("fromcsv", json!("a\n\"b"), Err("inside a quoted value"));
        check("fromcsv", json!([1]), Err("string"));
        check("fromcsv(\"ab\")", json!("a"), Err("one character"));
    }

    #[test]
    fn csv_is_written_and_read_again() {
        let rows = json!([{ "id": 1, "name": "Ada, \"L.\"" }, { "name": " x\n", "more": [true, null] }]);
        let text = "id,name,more\n1,\"Ada, \"\"L.\"\"\",\n,\" x\n\",\"[true,null]\"\n";
        check("tocsv", rows.clone(), Ok(json!(text)));
        check("tocsv | fromcsv | map(.name)", rows, Ok(json!(["Ada, \"L.\"", " x\n"])));
        check("tocsv", json!([["a", "b"], [1, 2.5]]), Ok(json!("a,b\n1,2.5\n")));
        check("tocsv", json!({ "a": 1 }), Ok(json!("a\n1\n")));
        check("tocsv", json!([]), Ok(json!("")));
        check("tocsv | fromcsv", json!([{ "a": "" }, { "a": "1" }]), Ok(json!([{ "a": "" }, { "a": "1" }])));
        check("tocsv", json!([1]), Err("array"));
        check("tocsv", json!([{ "a": 1 }, 2]), Err("object"));
        check(
            "map(@csv) | join(\";\")",
            json!([["a\"b", 1, null, true], []]),
            Ok(json!("\"a\"\"b\",1,,true;")),
        );
        check("@csv", json!([[1]]), Err("not a cell"));
    }

    #[test]
    fn tsv_and_markdown_are_tables_too() {
        let rows = json!([{ "a": "x\ty|z", "b": "1\n2" }, { "a": "\\", "b": "" }]);
        for (to, from) in [("totsv", "fromtsv"), ("tocsv", "fromcsv")] {
            check(&format!("{to} | {from}"), rows.clone(), Ok(rows.clone()));
        }
        check("[.[][]] | @tsv", rows.clone(), Ok(json!("x\\ty|z\t1\\n2\t\\\\\t")));
        check("tomd", rows, Ok(json!("| a | b |\n| --- | --- |\n| x\ty\\|z | 1<br>2 |\n| \\ |  |\n")));
        let text = "# Prices\n\nname | price\n:---|---:\n`a\\|b` | 2\n| c | 3 |\n\nEnd | of it";
        check(
            "frommd",
            json!(text),
            Ok(json!([{ "name": "`a|b`", "price": "2" }, { "name": "c", "price": "3" }])),
        );
        check("frommd", json!("a | b\nc | d"), Err("no Markdown table"));
        check("tomd | frommd", json!([{ "a": "|", "b": "x" }]), Ok(json!([{ "a": "|", "b": "x" }])));
    }

    #[test]
    fn rows_are_joined_by_an_index() {
        let value =
            json!({ "c": [{ "id": 1, "name": "Ada" }], "o": [{ "by": 1, "n": 2 }, { "by": 5, "n": 3 }] });
        check(
            "(.c | INDEX(.id)) as $c | [.o[] | . + {name: $c[.by | tostring].name}]",
            value.clone(),
            Ok(json!([{ "by": 1, "n": 2, "name": "Ada" }, { "by": 5, "n": 3, "name": null }])),
        );
        check("[.c[].id] as $ids | [.o[] | select(.by | IN($ids[])) | .n]", value.clone(), Ok(json!([2])));
        check(
            "[IN(.o[].by; 5, 6), (1 | toarray), (\"xax\" | trimstr(\"x\"))]",
            value,
            Ok(json!([true, [1], "a"])),
        );
    }

    #[test]
    fn large_tables_are_read_in_time() {
        let text: String = (0..50_000).map(|n| format!("{n},\"row {n}\",x\n")).collect();
        check("fromcsv | length", json!(text), Ok(json!(49_999)));
    }
}
