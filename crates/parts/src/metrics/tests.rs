//! Tests of the room as a whole: the page, the sums, odd names.

use std::thread;

use super::*;

fn name(text: &str) -> Arc<str> {
    text.into()
}

/// Records a call of 100 bytes in and 1,000 out: 80 us in Nonet and, unless it is zero, `server_us` in the
/// server.
fn call(metrics: &Metrics, server: &str, tool: &str, outcome: &'static str, server_us: u64) {
    let (server, tool) = (name(server), name(tool));
    let full = name(&format!("{server}.{tool}"));
    let call = CallRecord {
        server: &server,
        tool: &tool,
        outcome,
        bytes_in: 100,
        bytes_out: 1_000,
        in_gateway: Duration::from_micros(80),
        in_server: Duration::from_micros(server_us),
    };
    metrics.record(&full, &call);
}

fn now(servers: &[(&str, &'static str)]) -> MetricsNow {
    let servers = servers.iter().map(|(server, state)| (name(server), ServerNow { state, calls_running: 0 }));
    MetricsNow { servers: servers.collect(), ..MetricsNow::default() }
}

/// Returns the samples of a page, by series. Fails if a line is not a sample or if a series occurs twice.
#[track_caller]
fn samples(page: &str) -> BTreeMap<&str, f64> {
    let body = page.strip_suffix("# EOF\n").expect("a page has an end");
    let mut samples = BTreeMap::new();
    for line in body.split_terminator('\n').filter(|line| !line.starts_with("# ")) {
        let (series, value) = line.rsplit_once(' ').expect("a series and a value");
        let plain = series.split('{').next().unwrap_or_default();
        assert!(plain.bytes().all(|b| b == b'_' || b.is_ascii_lowercase()), "{line}");
        let value = value.parse().expect("a number");
        assert_eq!(samples.insert(series, value), None, "twice: {series}");
    }
    samples
}

#[test]
fn the_page_is_as_promised() {
    let metrics = Metrics::default();
    call(&metrics, "shop", "buy", "ok", 3_000);
    call(&metrics, "shop", "buy", "ok", 40_000);
    call(&metrics, "shop", "buy", "timeout", 30_000_000);
    call(&metrics, "shop", "list", "tool_error", 2_000);
    call(&metrics, "gateway", "status", "ok", 0);
    metrics.refused("unknown_tool");
    metrics.refused("unknown_tool");
    metrics.refused("invalid_params");
    metrics.searched(Duration::from_micros(700));
    metrics.restarted(&name("shop"));
    let page = metrics.render(MetricsNow {
        servers: BTreeMap::from([
            (name("shop"), ServerNow { state: "ready", calls_running: 2 }),
            (name("mail"), ServerNow { state: "auth_required", calls_running: 0 }),
        ]),
        tasks_running: 1,
        notices_waiting: 4,
        kept_entries: 12,
        kept_bytes: 34_567,
        sessions: 3,
        tools: 118,
        bytes_of_all_tools: 90_000,
        bytes_of_the_nine: 10_000,
        uptime_s: 61,
        cluster: Some(ClusterNow { replicas: 3, leaving: 1, other_config: 1, is_whole: true }),
    });
    samples(&page);
    insta::assert_snapshot!(page);
}

#[test]
fn an_empty_page_is_a_page() {
    let page = Metrics::default().render(MetricsNow::default());
    assert_eq!(samples(&page)["nonet_gateway_seconds_count"], 0.0);
}

#[test]
fn counts_add_up_over_threads() {
    const EACH: u64 = 2_000;
    let metrics = Metrics::default();
    thread::scope(|scope| {
        for thread in 0..8 {
            let metrics = &metrics;
            scope.spawn(move || {
                for i in 0..EACH {
                    let outcome = if i % 4 == 0 { "timeout" } else { "ok" };
                    call(metrics, "shop", if i % 2 == 0 { "buy" } else { "list" }, outcome, 1_000);
                    metrics.refused("forbidden");
                    metrics.searched(Duration::from_millis(1));
                    metrics.restarted(&name("shop"));
                    if thread == 0 && i % 500 == 0 {
                        samples(&metrics.render(now(&[("shop", "ready")])));
                    }
                }
            });
        }
    });
    let calls = 8 * EACH;
    assert_eq!(metrics.total(), (2 * calls, calls / 4 + calls), "refused ones are among them");
    assert_eq!(metrics.of("shop.buy"), (calls / 2, calls / 4));
    assert_eq!(metrics.of("shop.list"), (calls / 2, 0));
    let expected = BTreeMap::from([("ok", calls * 3 / 4), ("timeout", calls / 4), ("forbidden", calls)]);
    assert_eq!(metrics.outcomes(), expected);
    assert_eq!(metrics.mean_us(), Some((80, 1_000)));
    let page = metrics.render(now(&[("shop", "ready")]));
    let samples = samples(&page);
    for (series, expected) in [
        ("nonet_calls_total{server=\"shop\",tool=\"buy\",outcome=\"timeout\"}", calls / 4),
        ("nonet_calls_total{server=\"shop\",tool=\"list\",outcome=\"ok\"}", calls / 2),
        ("nonet_refused_total{outcome=\"forbidden\"}", calls),
        ("nonet_in_bytes_total{server=\"shop\"}", calls * 100),
        ("nonet_out_bytes_total{server=\"shop\"}", calls * 1_000),
        ("nonet_server_restarts_total{server=\"shop\"}", calls),
        ("nonet_server_seconds_count{server=\"shop\"}", calls),
        ("nonet_server_seconds_bucket{le=\"0.001\",server=\"shop\"}", calls),
        ("nonet_gateway_seconds_count", calls),
        ("nonet_search_seconds_count", calls),
    ] {
        assert_eq!(samples.get(series), Some(&(expected as f64)), "{series}");
    }
}

#[test]
fn names_are_escaped_and_odd_ones_do_no_harm() {
    let odd = [
        "",
        " ",
        "a\"b",
        "a\\b",
        "a\\\"b",
        "two\nlines",
        "end\\",
        "}",
        "a{b=\"c\"} 1",
        "# EOF",
        "carriage\rreturn",
        "nul\0",
        "größe",
        "🛒",
        "_other",
    ];
    let metrics = Metrics::default();
    for (i, server) in odd.iter().enumerate() {
        for tool in odd {
            call(&metrics, server, tool, "ok", i as u64);
        }
        metrics.restarted(&name(server));
    }
    let servers: Vec<_> = odd.iter().map(|server| (*server, "ready")).collect();
    let page = metrics.render(now(&servers));
    let samples = samples(&page);
    let count = |start: &str| samples.keys().filter(|series| series.starts_with(start)).count();
    assert_eq!(count("nonet_calls_total{"), odd.len() * odd.len());
    assert_eq!(count("nonet_server_up{"), odd.len());
    for escaped in [r#"a\"b"#, r"a\\b", r#"a\\\"b"#, r"two\nlines", r"end\\", "größe"] {
        let series = format!("nonet_server_up{{server=\"{escaped}\"}}");
        assert_eq!(samples.get(&*series), Some(&1.0), "{series}");
    }
    assert_eq!(page.matches("\n# EOF\n").count(), 1);
}

#[test]
fn two_tools_with_one_label_are_one_series() {
    let metrics = Metrics::default();
    let (server, tool) = (name("shop"), name("buy"));
    for full in ["shop.buy", "shop.buy_2"] {
        let (bytes_in, bytes_out, time) = (1, 1, Duration::from_millis(1));
        let call = CallRecord {
            server: &server,
            tool: &tool,
            outcome: "ok",
            bytes_in,
            bytes_out,
            in_gateway: time,
            in_server: time,
        };
        metrics.record(&name(full), &call);
    }
    let page = metrics.render(MetricsNow::default());
    assert_eq!(samples(&page)["nonet_calls_total{server=\"shop\",tool=\"buy\",outcome=\"ok\"}"], 2.0);
}

#[test]
fn what_waits_for_the_user_has_not_failed() {
    let metrics = Metrics::default();
    for outcome in ["ok", "needs_approval", "tool_error"] {
        call(&metrics, "shop", "buy", outcome, 1_000);
    }
    metrics.refused("needs_approval");
    assert_eq!((metrics.of("shop.buy"), metrics.total()), ((3, 1), (4, 1)));
    assert_eq!(metrics.outcomes().values().sum::<u64>(), metrics.total().0);
}

#[test]
fn the_number_of_series_has_an_end() {
    let metrics = Metrics::default();
    for i in 0..MAX_TOOLS + 500 {
        call(&metrics, ["shop", "mail"][i % 2], &format!("tool_{i}"), "ok", 1_000);
    }
    call(&metrics, "shop", "tool_0", "ok", 1_000);
    assert_eq!(metrics.total(), (MAX_TOOLS as u64 + 501, 0));
    assert_eq!(metrics.of("shop.tool_0"), (2, 0));
    let page = metrics.render(MetricsNow::default());
    let samples = samples(&page);
    let series = samples.keys().filter(|series| series.starts_with("nonet_calls_total")).count();
    assert_eq!(series, MAX_TOOLS + 2);
    for server in ["shop", "mail"] {
        let other = format!("nonet_calls_total{{server=\"{server}\",tool=\"_other\",outcome=\"ok\"}}");
        assert_eq!(samples.get(&*other), Some(&250.0), "{other}");
    }
}

#[test]
fn own_tools_do_not_count_as_time_in_a_server() {
    let metrics = Metrics::default();
    assert_eq!(metrics.mean_us(), None);
    assert_eq!(metrics.latency(), Latency { gateway: None, server: None, search: None });
    call(&metrics, "gateway", "status", "ok", 0);
    assert_eq!(metrics.mean_us(), Some((80, 0)));
    assert_eq!(metrics.latency().server, None);
    call(&metrics, "shop", "buy", "ok", 3_000);
    assert_eq!(metrics.mean_us(), Some((80, 3_000)));
    let page = metrics.render(MetricsNow::default());
    assert!(!page.contains("nonet_server_seconds_count{server=\"gateway\"}"), "{page}");
}

#[test]
fn quantiles_cover_all_servers() {
    let metrics = Metrics::default();
    for _ in 0..90 {
        call(&metrics, "shop", "buy", "ok", 3_000);
    }
    for _ in 0..10 {
        call(&metrics, "mail", "send", "ok", 700_000);
    }
    metrics.searched(Duration::from_millis(2));
    let latency = metrics.latency();
    let server = latency.server.expect("servers were called");
    assert!((2_500..=5_000).contains(&server.p50_us), "{server:?}");
    assert!((500_000..=1_000_000).contains(&server.p95_us), "{server:?}");
    assert_eq!(
        serde_json::to_value(latency).expect("plain numbers"),
        serde_json::json!({
            "gateway": { "p50_us": 75, "p95_us": 97 },
            "server": { "p50_us": 3_888, "p95_us": 750_000 },
            "search": { "p50_us": 2_500, "p95_us": 2_500 },
        })
    );
}

#[test]
fn a_short_list_saves_nothing() {
    let now = MetricsNow { bytes_of_all_tools: 2_000, bytes_of_the_nine: 10_000, ..MetricsNow::default() };
    let page = Metrics::default().render(now);
    assert_eq!(samples(&page)["nonet_tools_list_saved_tokens"], -2_000.0);
}
