//! Tables without borders: at most as wide as the terminal, in colour if wanted.

use std::{fmt, io::IsTerminal};

use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use console::{Style, Term};
use nonet_base::text;

/// The look of a word if there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordStyle {
    /// As it should be.
    Good,
    /// It needs attention.
    Warn,
    /// It failed, or is dangerous.
    Bad,
}

/// Marks before a word of each look, and after any word. They have no width, so column widths stay correct;
/// they are replaced when the table is shown.
const MARKS: [(char, WordStyle); 3] =
    [('\u{2061}', WordStyle::Good), ('\u{2062}', WordStyle::Warn), ('\u{2063}', WordStyle::Bad)];
const END: char = '\u{2064}';
/// The minimum width of the last column, even if the others would take all.
const LAST: u16 = 24;

/// Marks a word for a cell with its look.
pub(super) fn paint(look: WordStyle, word: &str) -> String {
    let mark = MARKS.iter().find(|(_, marked)| *marked == look).map_or(END, |(mark, _)| *mark);
    format!("{mark}{word}{END}")
}

/// A table of plain lines.
#[derive(Debug)]
pub(super) struct PlainTable {
    table: Table,
    /// The maximum height of a row, in terminal lines.
    height: Option<usize>,
}

/// Returns an empty table.
pub(super) fn plain_table(head: &[&str]) -> PlainTable {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(head);
    PlainTable { table, height: None }
}

impl PlainTable {
    /// Adds a row. In a narrow terminal, the last column shrinks.
    pub(super) fn add_row<T: ToString>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells = cells.into_iter().map(|cell| clean(&cell.to_string()));
        self.table.add_row(cells.collect::<Vec<_>>());
    }

    /// Limits rows to this many terminal lines; the rest of their text is cut.
    pub(super) fn clipped(mut self, lines: usize) -> Self {
        self.height = Some(lines);
        self
    }

    /// Renders the table for a terminal of this width; without a width, lines are not wrapped.
    fn render(&self, width: Option<u16>, colours: bool) -> String {
        let mut table = self.table.clone();
        let Some(width) = width else {
            table.set_content_arrangement(ContentArrangement::Disabled);
            return coloured(&table.trim_fmt(), colours);
        };
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        let content = table.column_max_content_widths();
        // Each column is padded on both sides.
        let others: u16 =
            content.iter().rev().skip(1).map(|width| width.saturating_add(2)).fold(2, u16::saturating_add);
        if others.saturating_add(LAST) <= width {
            for at in 0..content.len().saturating_sub(1) {
                if let Some(column) = table.column_mut(at) {
                    column.set_constraint(ColumnConstraint::ContentWidth);
                }
            }
        }
        if let Some(height) = self.height {
            for row in table.row_iter_mut() {
                row.max_height(height);
            }
        }
        coloured(&table.trim_fmt(), colours)
    }
}

impl fmt::Display for PlainTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colours = std::io::stdout().is_terminal() && console::colors_enabled();
        f.write_str(&self.render(terminal_width(), colours))
    }
}

/// Returns the width of the terminal on stdout, if any.
pub(super) fn terminal_width() -> Option<u16> {
    let terminal = Term::stdout();
    // A terminal that does not report its width is assumed to have the usual one.
    std::io::stdout()
        .is_terminal()
        .then(|| terminal.size_checked().map_or(80, |(_, columns)| columns.max(20)))
}

/// Removes terminal control sequences from outside text. The marks of [`paint`] stay.
pub(super) fn clean(text: &str) -> String {
    let is_mark = |c: char| c == END || MARKS.iter().any(|(mark, _)| *mark == c);
    let parts =
        text.split_inclusive(is_mark).map(|part| match part.chars().next_back().filter(|c| is_mark(*c)) {
            Some(mark) => format!("{}{mark}", text::clean(&part[..part.len() - mark.len_utf8()])),
            None => text::clean(part).into_owned(),
        });
    parts.collect::<String>().replace('\t', " ")
}

/// Replaces the marks with colours and makes the first line bold; without colours, removes the marks.
fn coloured(text: &str, colours: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut look = Style::new();
    let mut word: Option<String> = None;
    for c in text.chars() {
        let mark = MARKS.iter().find(|(mark, _)| *mark == c);
        match (mark, c) {
            (Some((_, marked)), _) => {
                look = match marked {
                    WordStyle::Good => Style::new().green(),
                    WordStyle::Warn => Style::new().yellow(),
                    WordStyle::Bad => Style::new().red(),
                };
                word = Some(String::new());
            }
            (None, END) => {
                if let Some(word) = word.take() {
                    out.push_str(&styled(&look, &word, colours));
                }
            }
            (None, c) => word.as_mut().unwrap_or(&mut out).push(c),
        }
    }
    out.extend(word);
    match (colours, out.split_once('\n')) {
        (true, Some((head, rest))) => format!("{}\n{rest}", styled(&Style::new().bold(), head, true)),
        _ => out,
    }
}

fn styled(style: &Style, text: &str, colours: bool) -> String {
    if colours { style.clone().force_styling(true).apply_to(text).to_string() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> PlainTable {
        let mut table = plain_table(&["TOOL", "RISK", "DESCRIPTION"]);
        table.add_row([
            "filesystem.read_multiple_files".to_owned(),
            paint(WordStyle::Bad, "high"),
            "Reads the contents of several files at the same time, which is faster than one by one".repeat(2),
        ]);
        table.add_row(["time.now", "low", "Tells the\u{1b}[2J time"]);
        table
    }

    #[test]
    fn a_table_fits_the_terminal() {
        for width in [20, 40, 60, 80, 120, 300] {
            for lines in table().render(Some(width), false).lines() {
                assert!(lines.chars().count() <= usize::from(width), "{width}: {lines}");
            }
        }
        let text = table().clipped(1).render(Some(80), false);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("filesystem.read_multiple_files"), "names are whole: {text}");
    }

    #[test]
    fn a_pipe_gets_whole_lines_without_trailing_space() {
        let text = table().clipped(1).render(None, false);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("one by oneReads"), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }

    #[test]
    fn colours_are_there_only_if_they_are_wanted() {
        let plain = table().render(Some(80), false);
        assert!(!plain.contains('\u{1b}') && !plain.contains(END), "{plain:?}");
        let colours = table().render(Some(80), true);
        assert!(colours.contains("\u{1b}[31mhigh\u{1b}[0m"), "{colours:?}");
        assert!(!colours.contains("\u{1b}[2J") && !colours.contains(END), "{colours:?}");
        let stripped = ["\u{1b}[31m", "\u{1b}[1m", "\u{1b}[0m"]
            .iter()
            .fold(colours, |text, code| text.replace(code, ""));
        assert_eq!(stripped, plain);
    }
}
