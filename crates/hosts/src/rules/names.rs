//! Patterns on tools' names, as clients write them (`*`, sometimes `?`) and as servers.toml does.

use std::fmt;

/// The longest pattern, in characters; no tool has a longer name.
const LONGEST: usize = 200;

/// A set of names: characters, and `*` and `?` in any place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct ToolNames(Vec<Token>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Char(char),
    One,
    Any,
}

impl ToolNames {
    /// Matches this name only.
    pub(crate) fn exact(name: &str) -> Self {
        Self(name.chars().map(Token::Char).collect())
    }

    /// Matches every name.
    pub(crate) fn every() -> Self {
        Self(vec![Token::Any])
    }

    /// Reads a client's pattern, in which `*` is any text. None if the pattern is too long.
    pub(crate) fn starred(text: &str) -> Option<Self> {
        Self::read(text, |c| if c == '*' { Token::Any } else { Token::Char(c) })
    }

    /// Reads a client's pattern, in which `*` is any text and `?` one character. None if the pattern is too
    /// long.
    pub(crate) fn wild(text: &str) -> Option<Self> {
        let token = |c| match c {
            '*' => Token::Any,
            '?' => Token::One,
            c => Token::Char(c),
        };
        Self::read(text, token)
    }

    fn read(text: &str, token: impl Fn(char) -> Token) -> Option<Self> {
        let tokens: Vec<Token> = text.chars().take(LONGEST + 1).map(token).collect();
        (tokens.len() <= LONGEST).then(|| Self(tokens).merged())
    }

    /// Reads a pattern of servers.toml. None if it has alternatives or character classes.
    pub(crate) fn of_servers_toml(glob: &str) -> Option<Self> {
        let mut tokens = Vec::new();
        let mut chars = glob.chars();
        while let Some(c) = chars.next() {
            tokens.push(match c {
                '*' => Token::Any,
                '?' => Token::One,
                '[' | '{' => return None,
                '\\' => Token::Char(chars.next()?),
                c => Token::Char(c),
            });
        }
        (tokens.len() <= LONGEST).then(|| Self(tokens).merged())
    }

    /// Returns the same names behind a server's name, as patterns on full names have it.
    pub(crate) fn of_server(&self, server: &str) -> Self {
        let prefix = server.chars().chain(['.']).map(Token::Char);
        Self(prefix.chain(self.0.iter().copied()).collect())
    }

    /// Whether every name matches.
    pub(crate) fn is_every(&self) -> bool {
        self.0 == [Token::Any]
    }

    /// Whether each name of the other set is in this one. A negative answer may be wrong.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        table(&self.0, &other.0, |a, b, covers| match (a, b) {
            (None, None) => true,
            (Some(Token::Any), None) => covers(1, 0),
            (Some(Token::Any), Some(_)) => covers(1, 0) || covers(0, 1),
            (Some(Token::One), Some(Token::One | Token::Char(_))) => covers(1, 1),
            (Some(Token::Char(a)), Some(Token::Char(b))) if a == b => covers(1, 1),
            _ => false,
        })
    }

    /// Whether a name is in both sets.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        table(&self.0, &other.0, |a, b, overlaps| match (a, b) {
            (None, None) => true,
            (Some(Token::Any), None) => overlaps(1, 0),
            (None, Some(Token::Any)) => overlaps(0, 1),
            (Some(Token::Any), Some(_)) | (Some(_), Some(Token::Any)) => overlaps(1, 0) || overlaps(0, 1),
            (Some(Token::Char(a)), Some(Token::Char(b))) => a == b && overlaps(1, 1),
            (Some(_), Some(_)) => overlaps(1, 1),
            _ => false,
        })
    }

    /// Returns the names that are in the set with a prefix before them.
    pub(crate) fn after(&self, prefix: &str) -> Vec<Self> {
        let mut places = vec![0];
        for c in prefix.chars() {
            let mut next = Vec::new();
            let mut left = places;
            while let Some(at) = left.pop() {
                match self.0.get(at) {
                    Some(Token::Any) => {
                        left.push(at + 1);
                        next.push(at);
                    }
                    Some(Token::One) => next.push(at + 1),
                    Some(Token::Char(own)) if *own == c => next.push(at + 1),
                    _ => {}
                }
            }
            next.sort_unstable();
            next.dedup();
            places = next;
        }
        let rests = places.into_iter().filter_map(|at| self.0.get(at..)).filter(|rest| !rest.is_empty());
        let mut kept: Vec<Self> = Vec::new();
        for rest in rests.map(|rest| Self(rest.to_vec())) {
            if !kept.iter().any(|known| known.covers(&rest)) {
                kept.push(rest);
            }
        }
        kept
    }

    /// Makes one `*` of several.
    fn merged(mut self) -> Self {
        self.0.dedup_by(|a, b| *a == Token::Any && *b == Token::Any);
        self
    }
}

/// Computes a relation of two patterns from their ends to their beginnings. `rule` gets the next token of
/// each, and the relation of what follows.
fn table(
    a: &[Token],
    b: &[Token],
    rule: impl Fn(Option<&Token>, Option<&Token>, &dyn Fn(usize, usize) -> bool) -> bool,
) -> bool {
    let width = b.len() + 1;
    let mut known = vec![false; (a.len() + 1) * width];
    for i in (0..=a.len()).rev() {
        for j in (0..=b.len()).rev() {
            let holds = rule(a.get(i), b.get(j), &|more, other| {
                known.get((i + more) * width + j + other).copied().unwrap_or_default()
            });
            if let Some(cell) = known.get_mut(i * width + j) {
                *cell = holds;
            }
        }
    }
    known.first().copied().unwrap_or_default()
}

/// Writes the pattern as servers.toml has it.
impl fmt::Display for ToolNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for token in &self.0 {
            match token {
                Token::Any => f.write_str("*")?,
                Token::One => f.write_str("?")?,
                Token::Char(c) if "*?[]{}\\".contains(*c) => write!(f, "\\{c}")?,
                Token::Char(c) => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}
