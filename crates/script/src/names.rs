//! The tools that the text of a script names.
//!
//! Only what certainly is a name counts: `tools.a.b`, `tools["a"]["b"]`, `tools.b(...)` and `call("a.b")`.
//! A name that the script puts together is not known before it runs.

use std::{collections::HashSet, iter::Peekable, str::CharIndices};

/// A tool that a script names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTool {
    /// The name as the call has it.
    pub name: String,
    /// Its line, from 1.
    pub line: usize,
}

#[derive(Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Mark(char),
}

/// Returns the tools that a script names, each once, in the order of the text.
pub fn named_tools(script: &str) -> Vec<NamedTool> {
    let tokens = Lexer::new(script).tokens();
    let (mut found, mut known) = (Vec::new(), HashSet::new());
    let mut add = |name: String, line: usize| {
        if known.insert(name.clone()) {
            found.push(NamedTool { name, line });
        }
    };
    for (at, (token, line)) in tokens.iter().enumerate() {
        let is_member = at.checked_sub(1).and_then(|before| tokens.get(before));
        if is_member.is_some_and(|(before, _)| *before == Token::Mark('.')) {
            continue;
        }
        let rest = tokens.get(at + 1..).unwrap_or_default();
        match token {
            Token::Word(word) if word == "tools" => {
                let (server, rest) = member(rest);
                let Some(server) = server else { continue };
                let is_call = |rest: &[(Token, usize)]| matches!(rest.first(), Some((Token::Mark('('), _)));
                match member(rest) {
                    (Some(tool), rest) if is_call(rest) => add(format!("{server}.{tool}"), *line),
                    (None, rest) if is_call(rest) => add(server, *line),
                    _ => {}
                }
            }
            Token::Word(word) if word == "call" => {
                if let [(Token::Mark('('), _), (Token::Text(name), _), (Token::Mark(',' | ')'), _), ..] = rest
                {
                    add(name.clone(), *line);
                }
            }
            _ => {}
        }
    }
    found
}

/// Reads `.name` or `["name"]`, and returns what follows.
fn member(tokens: &[(Token, usize)]) -> (Option<String>, &[(Token, usize)]) {
    match tokens {
        [(Token::Mark('.'), _), (Token::Word(name), _), rest @ ..] => (Some(name.clone()), rest),
        [(Token::Mark('['), _), (Token::Text(name), _), (Token::Mark(']'), _), rest @ ..] => {
            (Some(name.clone()), rest)
        }
        rest => (None, rest),
    }
}

/// Splits a script into words, texts and marks, without comments and regular expressions. Anything that is
/// not JavaScript gives some tokens too.
struct Lexer<'a> {
    chars: Peekable<CharIndices<'a>>,
    line: usize,
    tokens: Vec<(Token, usize)>,
    /// For each open template: how many braces are open in its value.
    templates: Vec<usize>,
}

impl<'a> Lexer<'a> {
    fn new(script: &'a str) -> Self {
        Self { chars: script.char_indices().peekable(), line: 1, tokens: Vec::new(), templates: Vec::new() }
    }

    fn next(&mut self) -> Option<char> {
        let (_, c) = self.chars.next()?;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn is_next(&mut self, c: char) -> bool {
        self.chars.peek().is_some_and(|(_, next)| *next == c)
    }

    fn tokens(mut self) -> Vec<(Token, usize)> {
        while let Some(c) = self.next() {
            let line = self.line;
            match c {
                '/' if self.is_next('/') => while self.next().is_some_and(|c| c != '\n') {},
                '/' if self.is_next('*') => self.comment(),
                '/' if !self.is_after_value() => self.regular_expression(),
                '"' | '\'' => {
                    let text = self.text(c);
                    self.tokens.push((Token::Text(text), line));
                }
                '`' => self.template(line),
                '{' => {
                    if let Some(open) = self.templates.last_mut() {
                        *open += 1;
                    }
                    self.tokens.push((Token::Mark(c), line));
                }
                '}' => match self.templates.last_mut() {
                    Some(0) => {
                        self.templates.pop();
                        self.template_rest();
                    }
                    Some(open) => {
                        *open -= 1;
                        self.tokens.push((Token::Mark(c), line));
                    }
                    None => self.tokens.push((Token::Mark(c), line)),
                },
                c if is_of_word(c) => {
                    let mut word = String::from(c);
                    while let Some((_, c)) = self.chars.next_if(|(_, c)| is_of_word(*c)) {
                        word.push(c);
                    }
                    self.tokens.push((Token::Word(word), line));
                }
                c if c.is_whitespace() => {}
                c => self.tokens.push((Token::Mark(c), line)),
            }
        }
        self.tokens
    }

    fn comment(&mut self) {
        let mut last = ' ';
        self.next();
        while let Some(c) = self.next() {
            if last == '*' && c == '/' {
                return;
            }
            last = c;
        }
    }

    /// Whether a slash divides here.
    fn is_after_value(&self) -> bool {
        match self.tokens.last() {
            Some((Token::Word(word), _)) => {
                !["return", "typeof", "case", "in", "of", "await", "yield", "void"].contains(&word.as_str())
            }
            Some((Token::Text(_), _)) => true,
            Some((Token::Mark(mark), _)) => [')', ']', '}'].contains(mark),
            None => false,
        }
    }

    fn regular_expression(&mut self) {
        let mut in_class = false;
        while let Some(c) = self.next() {
            match c {
                '\\' => drop(self.next()),
                '[' => in_class = true,
                ']' => in_class = false,
                '/' if !in_class => return,
                '\n' => return,
                _ => {}
            }
        }
    }

    fn text(&mut self, quote: char) -> String {
        let mut text = String::new();
        while let Some(c) = self.next() {
            match c {
                '\\' => text.extend(self.next()),
                '\n' => break,
                c if c == quote => break,
                c => text.push(c),
            }
        }
        text
    }

    /// Reads a template, which is a text if it has no values.
    fn template(&mut self, line: usize) {
        let mut text = String::new();
        while let Some(c) = self.next() {
            match c {
                '\\' => text.extend(self.next()),
                '`' => return self.tokens.push((Token::Text(text), line)),
                '$' if self.is_next('{') => {
                    self.next();
                    // A mark that belongs to nothing, so that this is no text.
                    self.tokens.push((Token::Mark('`'), line));
                    return self.templates.push(0);
                }
                c => text.push(c),
            }
        }
    }

    fn template_rest(&mut self) {
        while let Some(c) = self.next() {
            match c {
                '\\' => drop(self.next()),
                '`' => return self.tokens.push((Token::Mark('`'), self.line)),
                '$' if self.is_next('{') => {
                    self.next();
                    return self.templates.push(0);
                }
                _ => {}
            }
        }
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_code_only() {
        let check = |script: &str, expected: &[&str]| {
            let found: Vec<String> = named_tools(script).into_iter().map(|one| one.name).collect();
            assert_eq!(found, expected, "{script}");
        };
        check("await tools.fs.read_file({ path })", &["fs.read_file"]);
        check("tools\n  .fs\n  .read({}); tools.fs.read({})", &["fs.read"]);
        check("tools[\"my-server\"]['a.b']({})", &["my-server.a.b"]);
        check("tools?.fs?.read?.({})", &[]);
        check("tools.echo({ text: 'x' })", &["echo"]);
        check("call(\"fs.read\", {}); call('b'); call(`c.d`, x)", &["fs.read", "b", "c.d"]);
        // Not known before it runs.
        check("call(name, {}); call('a.' + b); call(`a.${b}`); const fs = tools.fs; tools[x].y()", &[]);
        check("x.tools.a.b(); x.call('a.b')", &[]);
        // Not code.
        check("// tools.a.b()\n/* call('c') */ log('tools.d.e()', `tools.f.g()`)", &[]);
        check("const r = /tools.a.b()/; const q = a / tools.b.c() / 2", &["b.c"]);
        check("log(`${await tools.a.b({ x: `${call('c')}` })} tools.d.e()`)", &["a.b", "c"]);
        check("return /[/]tools.a.b()/.test(x)", &[]);
        check("'it\\'s tools.a.b()'; tools.c.d()", &["c.d"]);
        // No JavaScript at all.
        check("`${", &[]);
        check("}}} ``` \\", &[]);
    }

    #[test]
    fn a_name_has_its_line() {
        let script = "const a = `\n${1}\n`;\n/* \n */ tools.a.b()";
        assert_eq!(named_tools(script), [NamedTool { name: "a.b".into(), line: 5 }]);
    }
}
