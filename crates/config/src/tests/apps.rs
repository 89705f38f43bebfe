//! Apps: workflows, and apps over a model.

use super::*;

#[test]
fn steps_that_are_not_a_plan_are_found() {
    let app = |steps: &str| format!("[apps.x]\nsteps = [\n{steps}\n]");
    check(&app(r#"{ tool = "t" }, { tool = "t", params = { a = ["{{step1.b}} {{input.c}}"] } }"#), &[]);
    check(&app(r#"{ tool = "t", after = ["step1"] }"#), &["3: apps.x.steps[0]: the step waits for itself"]);
    check(
        &app(r#"{ id = "a", tool = "t", after = ["c"] },
               { id = "b", tool = "t", params = { x = { y = "{{ a }}" } } },
               { id = "c", tool = "t", after = ["b"] },
               { id = "d", tool = "t", after = ["c"] }"#),
        &["3: apps.x.steps[0]: circular dependency of steps: `a -> c -> b -> a`"],
    );
    check(
        &app(r#"{ id = "step2", tool = "t" }, { tool = "t" }"#),
        &["3: apps.x.steps[1]: `step2` is already the id of step 1"],
    );
    check(
        &app(r#"{ tool = "t", params = { a = ["{{input.b}} {{ setp2[0] }}"] } }, { tool = "t" }"#),
        &["3: apps.x.steps[0].params.a[0]: a template refers to `setp2`, which is not a step"],
    );
    check(
        "[apps.x]\noutput = { a = \"{{step1.a}}{{input.b}}{{inptu}}\" }\nsteps = [{ tool = \"t\" }]",
        &["2: apps.x.output.a: a template refers to `inptu`, which is not a step"],
    );
}

#[test]
fn a_step_does_one_thing_with_the_keys_of_that_one() {
    let app = |steps: &str| format!("[apps.x]\nsteps = [\n{steps}\n]\n[apps.y]\ntool = \"t\"");
    check(
        &app(
            r#"{ tool = "t", when = ".input.a and .steps.b.n > 1", retry = { times = 2, wait = "1s", on = ["timeout"] }, timeout = "5s", select = ".x" },
               { id = "b", app = "y", input = { a = "{{input.a}}" } },
               { tool = "t", for_each = "{{b.rows}}", params = { a = "{{item.x}} {{index}}" }, max_concurrency = 2, on_error = "keep" },
               { ask = { question = "Which of {{b}}?", choices = "{{b}}", allow_multiple = true } },
               { filter = "[.steps.b.rows[] | .n * .input.m] | add", when = ".steps.b" }"#,
        ),
        &[],
    );
    check(
        &app(r#"{ tool = "t", filter = ".steps.nope" },
               { filter = ".steps.step1[", params = { a = 1 }, for_each = [1], input = 1 }"#),
        &[
            "3: apps.x.steps[0].filter: a step cannot have both `tool` and `filter`",
            "3: apps.x.steps[0].filter: the filter refers to `nope`, which is not a step",
            "4: apps.x.steps[1].filter: `.steps.step1[` is not a jq filter (expected `]` for `[` at its end)",
            "4: apps.x.steps[1].params: `params` belongs to `tool`, not to `filter`",
            "4: apps.x.steps[1].for_each: `for_each` belongs to `tool`, not to `filter`",
            "4: apps.x.steps[1].input: `input` belongs to `app`, not to `filter`",
        ],
    );
    check(
        &app(r#"{ when = ".steps.nope", params = { a = "{{item}}" } },
               { tool = "t", app = "y" },
               { tool = "t", input = "x", max_concurrency = 2, on_error = "keep" },
               { app = "yy", retry = {} },
               { ask = { question = "?" }, for_each = "{{step1}}" },
               { tool = "t", when = ".a[", select = "nosuch(1)", retry = { times = 11, on = ["timout"] } },
               { tool = "call_app", max_concurrency = 51, for_each = "{{item}}" }"#),
        &[
            "3: apps.x.steps[0]: a step needs `tool`, `app`, `ask` or `filter`",
            "3: apps.x.steps[0].when: the filter refers to `nope`, which is not a step",
            "3: apps.x.steps[0].params.a: a template refers to `item`, but the step has no `for_each`",
            "4: apps.x.steps[1].app: a step cannot have both `tool` and `app`",
            "5: apps.x.steps[2].input: `input` belongs to `app`, not to `tool`",
            "5: apps.x.steps[2].max_concurrency: `max_concurrency` needs `for_each`",
            "5: apps.x.steps[2].on_error: `on_error` needs `for_each`",
            "6: apps.x.steps[3].app: there is no app `yy`",
            "6: apps.x.steps[3].retry: `retry` belongs to `tool`, not to `app`",
            "7: apps.x.steps[4].for_each: `for_each` belongs to `tool`, not to `ask`",
            "8: apps.x.steps[5].when: `.a[` is not a jq filter (expected `]` for `[` at its end)",
            "8: apps.x.steps[5].select: `nosuch(1)` is not a jq filter (`nosuch` with 1 argument is not known)",
            "8: apps.x.steps[5].retry.times: must be at most 10",
            "8: apps.x.steps[5].retry.on[0]: `timout` is not an error code; choose from unknown_tool, ambiguous_tool, invalid_params, server_starting, server_down, auth_required, forbidden, needs_approval, rate_limited, timeout, cancelled, upstream_error, not_found, internal",
            "9: apps.x.steps[6].tool: a step calls a server's tool, but this is one of Nonet's own nine",
            "9: apps.x.steps[6].max_concurrency: must be at most 50",
            "9: apps.x.steps[6].for_each: a template refers to `item`, but the step has no `for_each`",
        ],
    );
}

#[test]
fn apps_in_apps_make_no_circle() {
    let app = |id: &str, runs: &str| format!("[[apps.{id}.steps]]\napp = \"{runs}\"\n");
    check(&app("a", "a"), &["2: apps.a.steps[0].app: the app calls itself"]);
    let circle = [app("a", "b"), app("b", "c"), app("c", "b")].concat();
    check(
        &circle,
        &[
            "4: apps.b.steps[0].app: circular dependency of apps: `b -> c -> b`",
            "6: apps.c.steps[0].app: circular dependency of apps: `c -> b -> c`",
        ],
    );
    let chain = |length: u8| -> String {
        let name = |at: u8| char::from(b'a' + at).to_string();
        let apps: String = (1..length).map(|at| app(&name(at - 1), &name(at))).collect();
        format!("{apps}[apps.{}]\ntool = \"t\"\n", name(length - 1))
    };
    check(&chain(5), &[]);
    check(
        &chain(6),
        &["2: apps.a.steps[0].app: apps are nested more than 5 deep: `a -> b -> c -> d -> e -> f`"],
    );
    let asking = "[[apps.b.steps]]\nask = { question = \"Well?\" }\n";
    check(
        &[&app("a", "b"), asking].concat(),
        &["2: apps.a.steps[0].app: `b` asks the user, which only an app that is called directly can do"],
    );
}

#[test]
fn a_model_is_the_clients_or_has_an_address() {
    let app = |keys: &str| format!("[apps.x]\nallowed_tools = ['files.*']\n{keys}");
    check(&app("model = 'client'\nmax_turns = 100"), &[]);
    check(&app("model = { base_url = 'http://localhost:1/v1', name = 'm' }\ntimeout = '10m'"), &[]);
    check(
        &app("model = 'gpt'\nmax_turns = 0"),
        &[
            "3: apps.x.model: `gpt` is not a model; the only valid string is `client`",
            "4: apps.x.max_turns: must be at least 1",
        ],
    );
    check(&app("model = 5"), &["3: apps.x.model: expected a table or a string in quotes, found a number"]);
    check(
        &app("[apps.x.model]\nbase_url = 'k3y@'\napi_key = \"s3cr3t\\n\"\nkey = 'x'"),
        &[
            "3: apps.x.model: `name` is missing",
            "4: apps.x.model.base_url: this value is not an http:// or https:// address",
            "5: apps.x.model.api_key: this value contains characters that are not allowed in a header",
            "6: apps.x.model.key: unknown key",
        ],
    );
    check(
        &app("model = 'client'\ntool = 'a.b'\noutput = 'x'"),
        &[
            "4: apps.x.tool: an app cannot have both `tool` and `model`",
            "5: apps.x.output: `output` belongs to `steps`, not to `model`",
        ],
    );
    check(
        &app("tool = 'a.b'"),
        &["2: apps.x.allowed_tools: `allowed_tools` belongs to `model`, not to `tool`"],
    );
    check(
        "[apps.x]\nmodel = { base_url = 'http://a', name = 'm', api_key = '${NO}' }",
        &["2: apps.x.model.api_key: the environment variable `NO` is not set"],
    );
    let text = "[apps.x]\nmodel = { base_url = 'http://a', name = 'm', api_key = '${TOKEN}' }";
    let shown = format!("{:?}", loaded(text).config.apps);
    assert!(shown.contains("Some(***)") && !shown.contains("s3cr3t"), "{shown}");
}
