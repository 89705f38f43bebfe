//! jq filters over JSON values, through jaq. Bounded in output; never on an async thread.

use std::time::Duration;

use jaq_core::{
    Compiler, Ctx, Vars, data,
    load::{Arena, File, Loader},
    native, unwrap_valr,
};
use jaq_json::{Val, read};
use serde_json::Value;

/// How many values a filter may put out.
const MAX_OUTPUTS: usize = 10_000;
/// How long a filter may run before the caller is told that it is too slow.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Functions of jq that would reach out of the value, to the environment and the process, with how
/// many arguments they take. They fail here.
const OUTSIDE: [(&str, usize); 2] = [("env", 0), ("halt", 1)];

/// Why a filter gave nothing.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SelectError {
    /// The filter is not jq.
    #[error("`{0}` is not a jq filter: {1}")]
    Syntax(String, String),
    /// The filter failed on this value.
    #[error("the jq filter `{0}` failed: {1}")]
    Failed(String, String),
    /// The filter took too long.
    #[error("the jq filter `{0}` did not end within {TIME_LIMIT:?}")]
    TooSlow(String),
}

/// Runs a filter. One output is the value itself, several are an array.
pub async fn select(filter: &str, value: Value) -> Result<Value, SelectError> {
    let text = filter.to_string();
    let work = tokio::task::spawn_blocking(move || run(&text, &value));
    match tokio::time::timeout(TIME_LIMIT, work).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(SelectError::Failed(filter.into(), "it could not be evaluated".into())),
        Err(_) => Err(SelectError::TooSlow(filter.into())),
    }
}

fn run(filter: &str, value: &Value) -> Result<Value, SelectError> {
    let failed = |why: String| SelectError::Failed(filter.into(), why);
    let input = read::parse_single(value.to_string().as_bytes()).map_err(|e| failed(e.to_string()))?;
    let defs = jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs());
    let funs = jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs());
    let refused = OUTSIDE.map(|(name, arguments)| {
        native::run::<data::JustLut<Val>>((name, native::v(arguments), |_| {
            native::bome(Err(jaq_core::Error::str("not available here")))
        }))
    });
    let funs = funs.filter(|(name, ..)| OUTSIDE.iter().all(|(out, _)| out != name)).chain(refused);
    let arena = Arena::default();
    let modules = Loader::new(defs)
        .load(&arena, File { code: filter, path: () })
        .map_err(|_| SelectError::Syntax(filter.into(), "it does not parse".into()))?;
    let program = Compiler::default().with_funs(funs).compile(modules).map_err(|errors| {
        let unknown: Vec<String> = errors
            .iter()
            .flat_map(|(_, errors)| errors)
            .map(|(name, _)| format!("`{name}` is not known"))
            .take(3)
            .collect();
        SelectError::Syntax(filter.into(), unknown.join(", "))
    })?;
    let context = Ctx::<data::JustLut<Val>>::new(&program.lut, Vars::new([]));
    let mut outputs = Vec::new();
    for output in program.id.run((context, input)).map(unwrap_valr) {
        let output = output.map_err(|error| failed(error.to_string()))?;
        outputs.push(serde_json::from_str(&output.to_string()).map_err(|e| failed(e.to_string()))?);
        if outputs.len() >= MAX_OUTPUTS {
            return Err(failed(format!("it puts out more than {MAX_OUTPUTS} values")));
        }
    }
    Ok(if outputs.len() == 1 { outputs.remove(0) } else { Value::Array(outputs) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(filter: &str, expected: Result<Value, &str>) {
        let value = json!({"items": [{"n": 1, "t": "a"}, {"n": 2, "t": "b"}]});
        match (run(filter, &value), expected) {
            (Ok(got), Ok(wanted)) => assert_eq!(got, wanted, "{filter}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (got, _) => panic!("{filter}: {got:?}"),
        }
    }

    #[test]
    fn filters_run() {
        check(".items[0].t", Ok(json!("a")));
        check(".items[].n", Ok(json!([1, 2])));
        check("[.items[] | select(.n > 1) | .t]", Ok(json!(["b"])));
        check(".items | length", Ok(json!(2)));
        check(".items | map(.t | test(\"a\"))", Ok(json!([true, false])));
        check(".items[", Err("not a jq filter"));
        check("nosuch(1)", Err("not known"));
        check("env", Err("not available"));
        check("halt", Err("not available"));
        check("$ENV", Err("not a jq filter"));
        check(".items.t", Err("failed"));
        check("range(100000)", Err("more than"));
    }
}
