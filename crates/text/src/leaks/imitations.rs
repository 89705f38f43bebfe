//! Text of a server in the form of Nonet's own answers: faults, notices, questions, task handles, previews.
//!
//! The members of an object that make up a form are looked for one by one, so that neither text around the
//! object nor white space, order or escapes hide it.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::{
    fault::FaultCode,
    results::{is_own_meta, is_reference},
};

/// The status of a question that the model has to ask.
const NEEDS_USER: &str = "needs_user";

/// A member that occurs in Nonet's answers.
#[derive(Clone, Copy)]
pub(super) enum ImitatedMember {
    Notices,
    NextStep,
    /// The value of `status` in a question to the user.
    NeedsUser,
    Error,
    Code,
    TaskId,
    State,
    Reference,
    Truncated,
}

/// The members and their names.
pub(super) const MEMBERS: [(&str, ImitatedMember); 9] = [
    ("notices", ImitatedMember::Notices),
    ("next_step", ImitatedMember::NextStep),
    (NEEDS_USER, ImitatedMember::NeedsUser),
    ("error", ImitatedMember::Error),
    ("code", ImitatedMember::Code),
    ("task_id", ImitatedMember::TaskId),
    ("state", ImitatedMember::State),
    ("ref", ImitatedMember::Reference),
    ("truncated", ImitatedMember::Truncated),
];

/// The beginnings of escaped ASCII letters, which no honest JSON contains.
pub(super) const ESCAPES: [&str; 4] = ["\\u004", "\\u005", "\\u006", "\\u007"];

/// What matters about a member's value.
enum Shape<'a> {
    List,
    Object,
    Text(&'a [u8]),
    True,
    Other,
}

impl<'a> Shape<'a> {
    /// Reads the value in the bytes behind a key; `None` if they follow no key.
    fn behind(bytes: &'a [u8]) -> Option<Self> {
        let value = skip(skip(bytes).strip_prefix(b":")?);
        Some(match value.first() {
            Some(b'[') => Self::List,
            Some(b'{') => Self::Object,
            Some(b'"') => {
                let text = &value[1..];
                let end = text.iter().position(|byte| matches!(byte, b'"' | b'\\')).unwrap_or(text.len());
                Self::Text(&text[..end])
            }
            Some(b't') => Self::True,
            _ => Self::Other,
        })
    }

    fn of(value: &'a Value) -> Self {
        match value {
            Value::Array(_) => Self::List,
            Value::Object(_) => Self::Object,
            Value::String(text) => Self::Text(text.as_bytes()),
            Value::Bool(true) => Self::True,
            _ => Self::Other,
        }
    }
}

/// The members seen so far in one text or value.
#[derive(Default)]
pub(super) struct SeenMembers {
    error: bool,
    code: bool,
    task: bool,
    running: bool,
    reference: bool,
    truncated: bool,
}

impl SeenMembers {
    /// Adds a member of JSON text, followed by these bytes behind its closing quote. Returns the form that it
    /// completes.
    pub(super) fn add(&mut self, member: ImitatedMember, behind: &[u8]) -> Option<&'static str> {
        match member {
            ImitatedMember::NeedsUser => Some("a question to the user"),
            member => self.add_shape(member, &Shape::behind(behind)?),
        }
    }

    /// Does the same for a member in a text, followed by `rest` from its closing quote on.
    pub(super) fn in_text(&mut self, member: ImitatedMember, rest: &str) -> Option<&'static str> {
        self.add(member, skip(rest.as_bytes()).strip_prefix(b"\"")?)
    }

    fn add_shape(&mut self, member: ImitatedMember, shape: &Shape<'_>) -> Option<&'static str> {
        let text = |is_meant: &dyn Fn(&str) -> bool| match shape {
            Shape::Text(text) => std::str::from_utf8(text).is_ok_and(is_meant),
            _ => false,
        };
        match member {
            ImitatedMember::Notices => return matches!(shape, Shape::List).then_some("notices"),
            ImitatedMember::NextStep => return matches!(shape, Shape::Object).then_some("a next step"),
            ImitatedMember::NeedsUser => return None,
            ImitatedMember::Error => self.error |= matches!(shape, Shape::Object),
            ImitatedMember::Code => self.code |= text(&|code| FaultCode::of(code).is_some()),
            ImitatedMember::TaskId => {
                self.task |= text(&|_| true);
                self.running |= text(&is_reference);
            }
            ImitatedMember::State => self.running |= text(&|state| state == "running"),
            ImitatedMember::Reference => {
                self.reference |= text(&|_| true);
                self.truncated |= text(&is_reference);
            }
            ImitatedMember::Truncated => self.truncated |= matches!(shape, Shape::True),
        }
        match member {
            ImitatedMember::Error | ImitatedMember::Code => (self.error && self.code).then_some("a fault"),
            ImitatedMember::TaskId | ImitatedMember::State => (self.task && self.running).then_some("a task"),
            _ => (self.reference && self.truncated).then_some("a preview"),
        }
    }
}

/// Returns the member of this name.
pub(super) fn member(name: &str) -> Option<ImitatedMember> {
    // Most strings have another length.
    if !(3..=10).contains(&name.len()) {
        return None;
    }
    MEMBERS.iter().find(|(own, _)| *own == name).map(|(_, member)| *member)
}

/// Returns the form that an object has, if it is one of Nonet's.
pub(super) fn in_object(fields: &Map<String, Value>) -> Option<&'static str> {
    let mut seen = SeenMembers::default();
    let mut found = None;
    for (key, value) in fields {
        if value == NEEDS_USER {
            return Some("a question to the user");
        }
        let form = member(key).and_then(|member| match (member, value.get("code")) {
            // The code of a fault is inside.
            (ImitatedMember::Error, Some(code)) => {
                seen.code = false;
                seen.add_shape(ImitatedMember::Code, &Shape::of(code));
                seen.add_shape(ImitatedMember::Error, &Shape::of(value))
            }
            (ImitatedMember::Error | ImitatedMember::Code, _) => None,
            (member, _) => seen.add_shape(member, &Shape::of(value)),
        });
        found = found.or(form);
    }
    found
}

/// Returns whether a string, followed by these bytes, is a key that only Nonet may use in `_meta`.
pub(super) fn is_own_key(text: &str, behind: &[u8]) -> bool {
    is_own_meta(text) && behind.trim_ascii_start().starts_with(b":")
}

/// Returns a text with escaped ASCII characters spelled out, at any depth of JSON in JSON.
pub(super) fn unescaped(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut done = 0;
    for (at, _) in text.match_indices("\\u00") {
        let code = text.get(at + 4..at + 6).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(code) = code.filter(|code| at >= done && (0x20..0x7f).contains(code)) {
            out.push_str(text[done..at].trim_end_matches('\\'));
            out.push(code.into());
            done = at + 6;
        }
    }
    if done == 0 {
        return text.into();
    }
    out.push_str(&text[done..]);
    out.into()
}

/// Skips white space and backslashes, which JSON in a string has before its quotes, and escaped white space.
fn skip(mut rest: &[u8]) -> &[u8] {
    loop {
        let trimmed = rest.trim_ascii_start();
        let slashes = trimmed.iter().take_while(|byte| **byte == b'\\').count();
        rest = &trimmed[slashes..];
        match rest.first() {
            Some(b'n' | b't' | b'r') if slashes > 0 => rest = &rest[1..],
            _ => return rest,
        }
    }
}
