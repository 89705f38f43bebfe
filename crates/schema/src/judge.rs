//! Whether a value can fit, judged by the common keywords only, and generously: unknown keywords count as
//! satisfied. Repairs rely on it; the real validator checks their result.

use serde_json::Value;

use super::{
    limits,
    repair::{MAX_DEPTH, Repair},
    signature::{properties, required},
};

/// The most subschemas considered together for one value.
const MAX_VIEWS: usize = 64;

impl<'a> Repair<'a> {
    /// Whether `value` may fit. Keywords unknown here count as satisfied.
    pub(super) fn fits(&self, schema: &'a Value, value: &Value, depth: usize) -> bool {
        if depth > MAX_DEPTH || self.left.get() == 0 {
            return true;
        }
        if schema == &Value::Bool(false) {
            return false;
        }
        let views = self.views(schema);
        let listed = options(&views).count() + views.iter().map(|view| required(view).count()).sum::<usize>();
        self.spend(views.len() + listed);
        views.iter().all(|view| self.fits_one(view, value, depth))
    }

    fn fits_one(&self, view: &'a Value, value: &Value, depth: usize) -> bool {
        let typed = match view.get("type") {
            Some(Value::String(only)) => self.is(value, only),
            Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).any(|one| self.is(value, one)),
            _ => true,
        };
        let listed = options(&[view]).next().is_none() || options(&[view]).any(|option| same(option, value));
        let branch = ["anyOf", "oneOf"].iter().filter_map(|key| view.get(*key)?.as_array()).all(|branches| {
            branches.is_empty() || branches.iter().any(|branch| self.fits(branch, value, depth + 1))
        });
        let bound = |key: &str| view.get(key).and_then(Value::as_f64);
        let within = |length: usize, least: &str, most: &str| {
            bound(least).is_none_or(|least| length as f64 >= least)
                && bound(most).is_none_or(|most| length as f64 <= most)
        };
        typed
            && listed
            && branch
            && match value {
                Value::Object(fields) => {
                    required(view).all(|name| fields.contains_key(name))
                        && within(fields.len(), "minProperties", "maxProperties")
                        && fields.iter().all(|(key, field)| match property(view, key) {
                            Some(schema) => self.fits(schema, field, depth + 1),
                            None => true,
                        })
                }
                Value::Array(items) => {
                    within(items.len(), "minItems", "maxItems")
                        && items.iter().enumerate().all(|(at, item)| {
                            self.item_schema(view, at).is_none_or(|schema| self.fits(schema, item, depth + 1))
                        })
                }
                Value::String(text) => {
                    let length = || text.chars().count();
                    (view.get("minLength").is_none() && view.get("maxLength").is_none())
                        || within(length(), "minLength", "maxLength")
                }
                Value::Number(number) => number.as_f64().is_none_or(|number| {
                    bound("minimum").is_none_or(|least| number >= least)
                        && bound("maximum").is_none_or(|most| number <= most)
                        && bound("exclusiveMinimum").is_none_or(|least| number > least)
                        && bound("exclusiveMaximum").is_none_or(|most| number < most)
                }),
                _ => true,
            }
    }

    /// Returns the schema of the item at `at`: its own in a tuple, or else the one for all others.
    pub(super) fn item_schema(&self, view: &'a Value, at: usize) -> Option<&'a Value> {
        let (tuple, others) = match self.prefix_items {
            true => (view.get("prefixItems"), view.get("items")),
            false if view.get("items").is_some_and(Value::is_array) => {
                (view.get("items"), view.get("additionalItems"))
            }
            false => (None, view.get("items")),
        };
        tuple.and_then(|tuple| tuple.get(at)).or(others)
    }

    pub(super) fn is(&self, value: &Value, kind: &str) -> bool {
        match value {
            Value::Null => kind == "null",
            Value::Bool(_) => kind == "boolean",
            Value::Number(number) => {
                let integer = number.is_i64() || number.is_u64();
                let whole = number.as_f64().is_some_and(|number| number.fract() == 0.0);
                kind == "number" || kind == "integer" && (integer || whole && !self.draft4)
            }
            Value::String(_) => kind == "string",
            Value::Array(_) => kind == "array",
            Value::Object(_) => kind == "object",
        }
    }

    /// Whether the schema lists `kind` among its types, or accepts a value of that kind.
    pub(super) fn allows(&self, views: &[&'a Value], kind: &str) -> bool {
        let mut stated = false;
        let all = views.iter().all(|view| match view.get("type") {
            Some(Value::String(only)) => {
                stated = true;
                only == kind
            }
            Some(Value::Array(many)) => {
                stated = true;
                many.iter().any(|one| one == kind)
            }
            _ if options(&[view]).next().is_some() => {
                stated = true;
                options(&[view]).any(|option| self.is(option, kind))
            }
            _ if kind == "object" && properties(view).is_some() => {
                stated = true;
                true
            }
            _ => true,
        });
        all && stated
    }

    /// Whether values of that kind are not excluded.
    pub(super) fn may_be(&self, views: &[&'a Value], kind: &str) -> bool {
        let silent = views.iter().all(|view| view.get("type").is_none());
        silent || self.allows(views, kind)
    }

    /// Returns all subschemas that judge the same value: the schema, its references, and its `allOf`.
    pub(super) fn views(&self, schema: &'a Value) -> Vec<&'a Value> {
        let mut views = Vec::new();
        let mut next = vec![schema];
        while let Some(view) = next.pop()
            && views.len() < MAX_VIEWS
        {
            let reference = view.get("$ref").and_then(Value::as_str);
            next.extend(reference.and_then(|reference| limits::local(self.root, reference)));
            if reference.is_none() || !self.lone_references {
                next.extend(
                    view.get("allOf").and_then(Value::as_array).into_iter().flatten().take(MAX_VIEWS),
                );
                views.push(view);
            }
        }
        views
    }

    /// Returns the field names of a subschema that accepts objects.
    pub(super) fn object_fields(&self, schema: &'a Value) -> Option<Vec<&'a str>> {
        let views = self.views(schema);
        let names: Vec<&str> = views
            .iter()
            .filter_map(|view| properties(view))
            .flat_map(|all| all.keys().map(String::as_str))
            .collect();
        (self.allows(&views, "object") && !names.is_empty()).then_some(names)
    }
}

/// Returns the values of an `enum` or a `const`.
pub(super) fn options<'a>(views: &[&'a Value]) -> impl Iterator<Item = &'a Value> {
    views.iter().flat_map(|view| {
        let list = view.get("enum").and_then(Value::as_array).into_iter().flatten();
        list.chain(view.get("const")).collect::<Vec<_>>()
    })
}

pub(super) fn names(view: &Value, key: &str) -> bool {
    properties(view).is_some_and(|all| all.contains_key(key))
}

/// Returns the schema of the field `key`, ignoring patterns.
pub(super) fn property<'a>(view: &'a Value, key: &str) -> Option<&'a Value> {
    if let Some(own) = properties(view).and_then(|all| all.get(key)) {
        return Some(own);
    }
    view.get("additionalProperties").filter(|_| view.get("patternProperties").is_none())
}

/// Whether two values are equal in JSON Schema, where 1 equals 1.0.
pub(super) fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        _ => one == other,
    }
}
