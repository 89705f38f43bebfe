use std::{collections::BTreeMap, path::Path};

use nonet_api::fault::Reader;
use nonet_config as config;
use nonet_search::Index;
use nonet_servers::{
    catalog::{Catalog, CatalogSource, GATEWAY, Listing, guide},
    downstream::ConnectionContext,
};
use serde_json::{Value, json};

use super::*;
use crate::builtin;

/// Creates the gate of a session under a profile, before any server has started. `lists` has the tools of
/// each server.
fn gate(toml: &str, lists: &[(&str, Value)], profile: Option<&str>) -> Gate {
    let config =
        config::parse(toml, Path::new("f"), config::ValueSources::NONE).expect("it is usable").config;
    let around =
        Arc::new(ConnectionContext { login: "nonet login".into(), ..ConnectionContext::without_guard() });
    let world = World::new(config, None, |name, settings| {
        Arc::new(Connection::new(name, settings.clone(), around.clone(), None))
    })
    .world;
    let mut known: BTreeMap<&str, Listing> =
        BTreeMap::from([(GATEWAY, builtin::listing(&world.config.gateway))]);
    for (server, tools) in lists {
        let tools = tools.as_array().into_iter().flatten().cloned().map(Arc::new).collect();
        known.insert(server, Listing { tools, ..Listing::default() });
    }
    let sources = known.into_iter().map(|(server, listing)| CatalogSource {
        server: server.into(),
        listing: Arc::new(listing),
        settings: world.connections.get(server).map(|connection| connection.settings()),
    });
    let catalog = Catalog::new(sources, &world.config.policies);
    let index = Arc::new(Index::new(Vec::new(), &world.config.embedder));
    let snapshot = Snapshot::new(Arc::new(catalog), index, 1);
    Gate::new(Arc::new(world), Arc::new(snapshot), Session::new(profile.map(String::from)))
}

const SERVERS: &str = "[servers.files]\ncommand = 'x'\ntags = ['disk']\n[servers.shop]\ncommand = 'x'\n\
                       [servers.mail]\ncommand = 'x'\n[categories.team]\nservers = ['shop']\n";

fn lists() -> [(&'static str, Value); 2] {
    let reads = json!({ "readOnlyHint": true });
    [
        (
            "files",
            json!([
                { "name": "read", "annotations": reads },
                { "name": "write" },
                { "name": "delete_all", "description": "Deletes everything" },
            ]),
        ),
        ("shop", json!([{ "name": "list_orders", "annotations": reads }, { "name": "write" }])),
    ]
}

#[test]
fn a_profile_allows_what_its_rules_name() {
    let check = |profile: &str, expected: &[&str]| {
        let gate = gate(&format!("{SERVERS}[profiles.p]\n{profile}\n"), &lists(), Some("p"));
        let of_servers = gate.tools().filter(|tool| &*tool.server != GATEWAY);
        let names: Vec<&str> = of_servers.map(|tool| &*tool.full).collect();
        assert_eq!(names, expected, "{profile}");
        assert_eq!(gate.count_tools(), expected.len(), "{profile}");
        for server in ["files", "shop"] {
            let any = expected.iter().any(|name| name.starts_with(server));
            assert_eq!(gate.sees(server), any, "{profile}: {server}");
        }
        assert!(!gate.sees("mail"), "it has no tools");
    };
    let all = ["files.delete_all", "files.read", "files.write", "shop.list_orders", "shop.write"];
    check("", &all);
    check("categories = ['files']", &all[..3]);
    check("categories = ['team']", &all[3..]);
    check("tags = ['disk']", &all[..3]);
    check("max_risk = 'low'", &["files.read", "shop.list_orders"]);
    check("max_risk = 'medium'", &["files.read", "files.write", "shop.list_orders", "shop.write"]);
    check("deny = ['*.write', 'files.delete_*']", &["files.read", "shop.list_orders"]);
    check("only = ['*.write']", &["files.write", "shop.write"]);
    check("only = ['*.write']\nmax_risk = 'low'", &[]);
    // `allow` adds to categories and tags; without those it is the only limit. `deny` wins.
    check("max_risk = 'low'\nallow = ['shop.write']", &["shop.write"]);
    check(
        "categories = ['shop']\nallow = ['files.*']\ndeny = ['files.write']",
        &[all[0], all[1], all[3], all[4]],
    );
    check("only = ['shop.*']\nallow = ['files.read']", &all[3..]);
}

#[test]
fn skills_and_apps_are_for_every_profile_that_does_not_deny_them_and_for_no_model_app() {
    let [files, shop] = lists();
    let prompt = |server: &str| guide::prompt(server, &json!({ "name": "plan" })).expect("it has a name");
    let skills = json!([guide::skill("notes", ""), prompt("files"), prompt("shop")]);
    let lists = [files, shop, ("skills", skills), ("apps", json!([guide::app("weekly", "", None)]))];
    let gate = |profile: &str| gate(&format!("{SERVERS}[profiles.p]\n{profile}\n"), &lists, Some("p"));
    let names = |gate: &Gate| {
        let guides = gate.tools().filter(|tool| tool.kind != EntryKind::Tool);
        guides.map(|tool| tool.full.to_string()).collect::<Vec<_>>()
    };
    let all = ["apps.weekly", "skills.files/plan", "skills.notes", "skills.shop/plan"];
    let check = |profile: &str, expected: &[&str]| {
        let gate = gate(profile);
        assert_eq!(names(&gate), expected, "{profile}");
        for (kind, name) in [(EntryKind::App, "weekly"), (EntryKind::Skill, "notes")] {
            let full = name::full_name(kind.category().expect("it has one"), name);
            assert_eq!(gate.kept_from(kind, name).is_none(), expected.contains(&&*full), "{profile}: {full}");
        }
    };
    check("", &all);
    check("categories = ['files']", &all[..3]);
    check("only = ['shop.write']\nmax_risk = 'medium'", &[all[0], all[2]]);
    check("only = ['shop.write', 'shop.plan']\nmax_risk = 'medium'", &[all[0], all[2], all[3]]);
    check("max_risk = 'low'\ncategories = ['mail']", &[all[0], all[2]]);
    check("deny = ['apps.*', 'skills.shop/*']", &all[1..3]);
    check("deny = ['shop.*']", &all[..3]);
    let open = gate("");
    let of_app = Session::of_app("x", Globs::new(vec!["*".into()]).expect("a pattern"), &open.session);
    let limited = Gate { session: of_app, ..open };
    assert_eq!(names(&limited), Vec::<String>::new());
    assert_eq!(limited.kept_from(EntryKind::App, "weekly").as_deref(), Some("apps.x.allowed_tools"));
}

#[test]
fn a_profile_that_is_gone_allows_nothing() {
    let gate = gate(SERVERS, &lists(), Some("gone"));
    assert_eq!((gate.tools().count(), gate.sees("files"), gate.may_concern("mail")), (0, false, false));
    let fault = gate.tool("files.read").expect_err("forbidden or unknown");
    assert!(matches!(fault.code, FaultCode::Forbidden | FaultCode::UnknownTool), "{fault}");
}

#[test]
fn a_name_leads_to_one_tool_or_to_a_fault_that_says_why() {
    let toml = format!("{SERVERS}[profiles.p]\ndeny = ['files.delete_*']\n");
    let gate = gate(&toml, &lists(), Some("p"));
    for (name, expected) in [
        ("files.read", Ok("files.read")),
        ("files__read", Ok("files.read")),
        ("Files.Read", Ok("files.read")),
        ("mcp__nonet__files__read", Ok("files.read")),
        (" list_orders ", Ok("shop.list_orders")),
        ("files.delete_all", Err(FaultCode::Forbidden)),
        ("files.reed", Err(FaultCode::UnknownTool)),
        ("write", Err(FaultCode::AmbiguousTool)),
        ("search_tools", Err(FaultCode::InvalidParams)),
        ("nonet.searchTools", Err(FaultCode::InvalidParams)),
    ] {
        match (gate.tool(name), expected) {
            (Ok(tool), Ok(full)) => assert_eq!(&*tool.full, full, "{name}"),
            (Err(fault), Err(code)) => assert_eq!(fault.code, code, "{name}: {fault}"),
            (found, expected) => panic!("{name}: {found:?}, expected {expected:?}"),
        }
    }
    assert_eq!(gate.meta_tool("SearchTools"), Some("search_tools"));
    assert_eq!(gate.meta_tool("files.read"), None);
}

#[test]
fn what_the_rules_say_of_a_call_is_said_once() {
    let toml = format!(
        "{SERVERS}[policies.careful]\nrisk = 'high'\npolicy = 'approve'\n\
         [policies.never]\ntools = ['shop.write']\npolicy = 'deny'\n"
    );
    let gate = gate(&toml, &lists(), None);
    let verdict = |name: &str| gate.catalog().get(name).map(|tool| gate.verdict(tool));
    assert_eq!(verdict("files.read"), Some(PolicyVerdict::Allow));
    assert_eq!(verdict("files.delete_all"), Some(PolicyVerdict::Approve("policies.careful".into())));
    assert_eq!(verdict("shop.write"), Some(PolicyVerdict::Deny("policies.never".into())));
}

#[test]
fn a_view_is_made_again_for_another_configuration() {
    let before = gate(&format!("{SERVERS}[profiles.p]\ndeny = ['files.*']\n"), &lists(), Some("p"));
    assert_eq!(before.count_tools(), 2);
    let after = gate(&format!("{SERVERS}[profiles.p]\ndeny = ['shop.*']\n"), &lists(), Some("p"));
    let mixed = Gate::new(after.world.clone(), before.snapshot.clone(), before.session.clone());
    assert_eq!(mixed.count_tools(), 3);
}

#[test]
fn servers_without_a_list_are_named_where_a_name_means_them() {
    let toml = format!("{SERVERS}[servers.broken]\ncommand = 'x'\ntimeout = 'soon'\n");
    let gate = gate(&toml, &lists(), None);
    assert_eq!(gate.unlisted(), [Arc::from("mail")]);
    assert_eq!(gate.named_server("mail.send"), Some("mail".into()));
    assert_eq!(gate.named_server("post.send"), None);
    assert_eq!(gate.trouble("mail"), Some(nonet_api::status::ServerState::Starting));
    // Its list is still pending.
    assert!(gate.out_of_reach("mail.send").is_none());
    let fault = gate.out_of_reach("broken.run").expect("it is left out");
    assert!(!fault.retryable && fault.message.contains("timeout"), "{fault}");
    assert!(gate.members("files", Reader::Model).is_ok_and(|members| members.len() == 3));
    assert!(gate.members("mail", Reader::Model).is_ok_and(|members| members.is_empty()));
    assert_eq!(gate.members("fils", Reader::Model).expect_err("unknown").code, FaultCode::NotFound);
}

#[test]
fn a_profile_knows_of_the_servers_that_it_is_for() {
    let check = |profile: &str, expected: bool| {
        let text = format!(
            "[servers.docs]\ncommand = 'x'\n[categories.team]\nservers = ['docs']\n[profiles.p]\n{profile}\n"
        );
        let config =
            config::parse(&text, Path::new("f"), config::ValueSources::NONE).expect("it is usable").config;
        let scope = PolicyScope { name: "p", profile: &config.profiles["p"], categories: &config.categories };
        assert_eq!(may_concern(Some(scope), "docs"), expected, "{profile}");
    };
    assert!(may_concern(None, "docs"));
    check("", true);
    check("max_risk = 'low'", true);
    check("categories = ['docs']", true);
    check("categories = ['team']", true);
    check("categories = ['gateway']", false);
    check("tags = ['x']", false);
    check("allow = ['docs.read']", true);
    check("allow = ['mail.*']", false);
    check("deny = ['docs.*']", false);
    check("deny = ['docs.write']", true);
    check("only = ['docs.*']", true);
    check("only = ['docs.read']", true);
    check("only = ['mail.*']\ncategories = ['docs']", false);
}

#[test]
fn a_server_of_a_session_is_there_for_it_and_its_apps_only() {
    let whole = gate(SERVERS, &lists(), None);
    let (own, other) = (Session::new(None), Session::new(None));
    let app = Session::of_app("a", Globs::new(vec!["*".into()]).expect("patterns"), &own);
    let mut sources = Vec::new();
    for (server, tools) in lists() {
        let tools = tools.as_array().into_iter().flatten().cloned().map(Arc::new).collect();
        let listing = Arc::new(Listing { tools, about: "How to use it".into(), ..Listing::default() });
        let settings = whole.world.connections[server].settings();
        let session = (server == "shop").then_some(own.id);
        let settings = Some(Arc::new(config::ServerSettings { session, ..(*settings).clone() }));
        sources.push(CatalogSource { server: server.into(), listing, settings });
    }
    let shop = &whole.world.connections["shop"];
    shop.set(Arc::new(config::ServerSettings { session: Some(own.id), ..(*shop.settings()).clone() }));
    let world = World::of(whole.world.config.clone(), (*whole.world.connections).clone());
    let snapshot = whole.snapshot.updated(sources, whole.config(), 2);
    let (world, snapshot) = (Arc::new(world), Arc::new(snapshot));
    let check = |session: &Arc<Session>, is_there: bool| {
        let gate = Gate::new(world.clone(), snapshot.clone(), session.clone());
        assert_eq!(gate.count_tools(), if is_there { 5 } else { 3 });
        assert_eq!(gate.sees("shop"), is_there);
        assert_eq!(gate.connection("shop").is_some(), is_there);
        assert_eq!(gate.of_session(&world, "shop").is_some(), is_there);
        assert_eq!(gate.named_server("shop.list_orders").is_some(), is_there);
        assert_eq!(gate.members("shop", Reader::Model).is_ok(), is_there);
        let caller = Caller { session: session.clone(), lasting: true, ..Caller::default() };
        assert!(is_there || gate.instructions_for(&caller, "shop").is_none());
        for name in ["shop.list_orders", "shop__list_orders", "list_orders", "Shop.List-Orders"] {
            match gate.tool(name) {
                Ok(_) => assert!(is_there, "{name}"),
                Err(fault) => {
                    assert!(!is_there && fault.code == FaultCode::UnknownTool, "{name}: {fault}");
                    assert!(fault.did_you_mean.iter().all(|near| !near.starts_with("shop")), "{fault}");
                }
            }
        }
        // Another session's `write` does not make the name ambiguous.
        let code = gate.tool("write").map_or_else(|fault| Some(fault.code), |_| None);
        assert_eq!(code, is_there.then_some(FaultCode::AmbiguousTool));
    };
    // Each view is cached: request each one twice.
    for _ in 0..2 {
        check(&own, true);
        check(&other, false);
        check(&app, true);
        check(&Session::new(None), false);
    }
}
