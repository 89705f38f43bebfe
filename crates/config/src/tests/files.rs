//! The files: where they are, the shipped one, the schema and the reference.

use super::*;

#[test]
fn the_schema_is_plain_and_knows_every_table() {
    let mut schema = schema();
    // The embedder's part is tested in its own crate.
    schema["properties"]["embedder"].take();
    let text = serde_json::to_string_pretty(&schema["properties"]).unwrap();
    assert_snapshot!(text);
    for odd in ["anyOf", "oneOf", "\"null\"", "$ref"] {
        assert!(!text.contains(odd), "{odd}");
    }
}

#[test]
fn the_file_is_found_where_it_is_said_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("servers.toml");
    assert_eq!(find(Some(&missing)).unwrap_err().looked_at.as_deref(), Some(&*missing));
    assert!(matches!(load(&missing, here()), Err(LoadError::Unreadable { .. })));
    std::fs::write(&missing, "[servers.a]\ncommand = \"./a\"\n").unwrap();
    assert_eq!(find(Some(&missing)).unwrap(), missing);
    let config = load(&missing, here()).unwrap().config;
    let Transport::Stdio { command, .. } = &config.servers.values().next().unwrap().transport else {
        panic!()
    };
    assert_eq!(Path::new(command), folder.path().join("a"));
    std::fs::write(&missing, b"\xff").unwrap();
    assert!(matches!(load(&missing, here()), Err(LoadError::Unreadable { .. })));

    let own = |env: Env| own_place(env).unwrap();
    assert_eq!(own(&env), Path::new("/home/ann/.config/nonet/servers.toml"));
    let xdg = |name: &str| (name == "XDG_CONFIG_HOME").then(|| "/x".to_string());
    assert_eq!(own(&xdg), Path::new("/x/nonet/servers.toml"));
    assert_snapshot!(ConfigNotFound { looked_at: own_place(&env), named: false });
}

#[test]
fn the_shipped_file_has_no_fault() {
    let text = include_str!("../../../../servers.toml");
    let loaded = parse(text, Path::new(FILE), ValueSources::NONE).unwrap();
    assert_eq!(loaded.faults, []);
    assert_eq!(loaded.config.servers.len(), 7);
}

/// Editors complete from this schema: `#:schema` in the first line of `servers.toml`.
#[test]
fn the_schema_for_editors_is_up_to_date() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/servers.schema.json");
    let kept = std::fs::read_to_string(file).expect("it is there");
    let now = serde_json::to_string_pretty(&super::schema()).expect("it is JSON");
    assert!(kept.trim() == now, "update it: cargo run -- schema > docs/servers.schema.json");
}

#[test]
fn the_reference_in_the_docs_is_up_to_date() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference.md");
    let kept = std::fs::read_to_string(file).expect("it is there");
    assert!(kept == super::reference(), "update it: cargo run -- schema --markdown > docs/reference.md");
}
