//! Names: one table, two ways to call, whatever servers call their tools.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use nonet_servers::catalog::{Catalog, CatalogSource, Listing};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::setup::Setup;

/// Servers with their tools' names.
type Servers = BTreeMap<String, BTreeSet<String>>;

fn catalog<'a>(servers: impl Iterator<Item = (&'a String, Vec<&'a String>)>) -> Catalog {
    let sources = servers.map(|(server, tools)| {
        let tools =
            tools.into_iter().map(|tool| json!({ "name": tool, "inputSchema": { "type": "object" } }));
        let listing = Listing { tools: tools.map(Arc::new).collect(), ..Listing::default() };
        CatalogSource { server: server.as_str().into(), listing: Arc::new(listing), settings: None }
    });
    Catalog::new(sources, &BTreeMap::new())
}

fn tool_name() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-zA-Z0-9_.-]{1,12}",
        // Many of these become equal after cleaning.
        4 => "[ab][._:/ é-][ab]",
        2 => "\\PC{1,20}",
        2 => "[a-c]{60,63}[._-]?[ab]{1,8}",
    ]
}

fn servers() -> impl Strategy<Value = Servers> {
    let server = "[a-c0-9]{1,8}([_-][a-c0-9]{1,8}){0,2}";
    let tools = prop::collection::btree_set(tool_name(), 0..14);
    prop::collection::btree_map(server, tools, 1..6)
}

fn wire_names(catalog: &Catalog) -> BTreeMap<String, String> {
    catalog.visible().map(|tool| (tool.full.to_string(), tool.wire.to_string())).collect()
}

fn is_wire(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn wire_names_are_a_two_way_table_that_no_order_changes(servers in servers()) {
        let all = catalog(servers.iter().map(|(name, tools)| (name, tools.iter().collect())));
        let count: usize = servers.values().map(BTreeSet::len).sum();
        let names = wire_names(&all);
        prop_assert_eq!(names.len(), count);
        let wires: BTreeSet<&String> = names.values().collect();
        prop_assert_eq!(wires.len(), count, "two tools share a wire name: {:?}", names);
        for (server, tools) in &servers {
            for tool in tools {
                // A name that cannot be displayed is replaced.
                if nonet_base::text::name(tool) != *tool {
                    continue;
                }
                let full = format!("{server}.{tool}");
                let found = all.get(&full).expect("every tool is there by its full name");
                prop_assert_eq!((&*found.server, &*found.name), (server.as_str(), tool.as_str()));
                prop_assert!(is_wire(&found.wire), "{} is no wire name", found.wire);
                prop_assert_eq!(&*all.by_wire(&found.wire).expect("and by its wire name").full, full.as_str());
            }
        }
        let turned = catalog(servers.iter().rev().map(|(name, tools)| (name, tools.iter().rev().collect())));
        prop_assert_eq!(wire_names(&turned), names);
    }

    #[test]
    fn full_and_wire_names_lead_back_to_their_tool(servers in servers()) {
        let all = catalog(servers.iter().map(|(name, tools)| (name, tools.iter().collect())));
        for tool in all.visible() {
            prop_assert_eq!(&all.resolve(&tool.full).expect("the full name").full, &tool.full);
            prop_assert_eq!(&all.resolve(&tool.wire).expect("the wire name").full, &tool.full);
        }
    }

    #[test]
    fn no_name_makes_the_lookup_fail(servers in servers(), given in "\\PC{0,40}") {
        let all = catalog(servers.iter().map(|(name, tools)| (name, tools.iter().collect())));
        let _ = all.resolve(&given);
    }

    #[test]
    fn a_wire_name_stays_when_another_server_comes(servers in servers()) {
        let all = wire_names(&catalog(servers.iter().map(|(name, tools)| (name, tools.iter().collect()))));
        for (server, tools) in &servers {
            let alone = wire_names(&catalog(std::iter::once((server, tools.iter().collect()))));
            for (full, wire) in alone {
                prop_assert_eq!(&all[&full], &wire, "{} depends on the other servers", full);
            }
        }
    }
}

#[test]
fn white_space_in_a_tools_name_is_part_of_it() {
    let tools = ["tidy", "tidy ", "tidy\u{a0}", " "].map(String::from);
    let all = catalog(std::iter::once((&"a".to_string(), tools.iter().collect())));
    for tool in &tools {
        let full = format!("a.{tool}");
        assert_eq!(*all.resolve(&full).expect("its full name").full, full);
    }
    assert_eq!(&*all.resolve(" a.tidy\n").expect("with white space around it").full, "a.tidy");
}

fn tools(names: &[&str]) -> Value {
    json!({ "tools": names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>() })
}

fn office() -> Setup {
    Setup::new()
        .server("files", tools(&["read_file", "Write-File", "dir.list", "search"]))
        .server("web-search", tools(&["search", "fetch"]))
        .server("git_hub", tools(&["create_issue"]))
}

#[tokio::test]
async fn every_form_of_a_name_leads_to_the_tool() {
    let inside = office().open().await;
    let check = async |given: &str, expected: &str| {
        let tool = inside.answer("get_tool", json!({ "name": given })).await;
        assert_eq!(tool["name"], expected, "{given}: {tool}");
    };
    for given in [
        "files.read_file",
        "files__read_file",
        "files:read_file",
        "files/read_file",
        "mcp__nonet__files__read_file",
        "read_file",
        "Files.Read_File",
        "FILES__READ_FILE",
        "files.read-file",
        "READ-FILE",
        "mcp__nonet__files__read-file",
        " files.read_file ",
    ] {
        check(given, "files.read_file").await;
    }
    for given in ["files.Write-File", "files__write_file", "write-file", "files:Write_File"] {
        check(given, "files.Write-File").await;
    }
    for given in ["files.dir.list", "files__dir_list", "dir.list", "dir_list"] {
        check(given, "files.dir.list").await;
    }
    for given in
        ["web-search.search", "web_search__search", "web-search/search", "mcp__nonet__web-search__search"]
    {
        check(given, "web-search.search").await;
    }
    for given in ["git_hub.create_issue", "git-hub__create-issue", "create_issue"] {
        check(given, "git_hub.create_issue").await;
    }
}

#[tokio::test]
async fn what_other_clients_put_before_a_name_is_understood() {
    let inside = office().server("mcp_wiki", tools(&["look"])).server("wiki", tools(&["look"])).open().await;
    for given in [
        "mcp__files__read_file",
        "mcp_files_read_file",
        "mcp.files.read_file",
        "functions.files.read_file",
        "functions.files__read_file",
        "functions.mcp__nonet__files__read_file",
        "default_api.files.read_file",
        "Functions.Files.Read-File",
    ] {
        let tool = inside.answer("get_tool", json!({ "name": given })).await;
        assert_eq!(tool["name"], "files.read_file", "{given}: {tool}");
    }
    let found = inside.answer("functions.search_tools", json!({ "query": "search" })).await;
    assert!(found["results"].is_array(), "{found}");
    // A name that begins with a server's name is that server's, or nobody's.
    let tool = inside.answer("get_tool", json!({ "name": "mcp_wiki_look" })).await;
    assert_eq!(tool["name"], "mcp_wiki.look", "{tool}");
    let fault = inside.fault("get_tool", json!({ "name": "mcp_wiki_read_file" })).await;
    assert_eq!(fault["code"], "unknown_tool", "{fault}");
}

#[tokio::test]
async fn every_door_takes_every_form() {
    let inside = office().open().await;
    let params = json!({ "path": "a" });
    for given in [
        "files.read_file",
        "files__read_file",
        "files:read_file",
        "mcp__nonet__files__read_file",
        "READ-FILE",
    ] {
        let told = inside.execute(given, params.clone()).await;
        assert_eq!(crate::setup::json_of(&told), params, "execute_tool {given}");
        assert_eq!(inside.answer(given, params.clone()).await, params, "auto-routing {given}");
        let report =
            inside.answer("run_parallel", json!({ "actions": [{ "name": given, "params": params }] })).await;
        assert_eq!(report["results"][0]["result"], params, "run_parallel {given}: {report}");
        assert_eq!(report["results"][0]["name"], "files.read_file", "{report}");
    }
}

#[tokio::test]
async fn an_ambiguous_name_is_answered_with_the_candidates() {
    let inside = office().open().await;
    let answer = inside.answer("execute_tool", json!({ "name": "search", "params": {} })).await;
    insta::assert_json_snapshot!(answer);
}

#[tokio::test]
async fn an_unknown_name_is_answered_with_the_nearest() {
    let inside = office().open().await;
    let answer = inside.answer("execute_tool", json!({ "name": "files.read_fiel", "params": {} })).await;
    insta::assert_json_snapshot!(answer);
    for nonsense in ["", "   ", ".", "__", "qqqqqqqqqqqqqqqqqqqqqqqqqq", "mcp__nonet__", "\u{1f600}"] {
        let fault = inside.fault("execute_tool", json!({ "name": nonsense })).await;
        assert_eq!(fault["code"], "unknown_tool", "{nonsense:?}: {fault}");
        assert!(fault["next_step"].is_object(), "{fault}");
    }
}

#[tokio::test]
async fn a_meta_tool_cannot_be_called_through_another() {
    let inside = office().open().await;
    for name in nonet_meta::NAMES {
        let fault = inside.fault("execute_tool", json!({ "name": name })).await;
        assert_eq!(fault["code"], "invalid_params", "{name}: {fault}");
    }
}
