//! The configurations in `examples/`, as people copy them.

use std::{fs, path::Path};

use nonet_config::{self as config, ValueSources};

/// Returns a value for each secret, and a folder for `HOME`. Other variables in an example need a default,
/// because nobody has set them.
fn variable(name: &str) -> Option<String> {
    match name {
        "HOME" => Some("/home/ann".into()),
        _ => name.ends_with("_TOKEN").then(|| format!("a-token-of-{name}-0123")),
    }
}

#[test]
fn every_example_is_a_configuration_without_a_fault() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let sources = ValueSources { env: &variable, ..ValueSources::NONE };
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap();
        let loaded = config::load(&entry.path().join(config::FILE_NAME), sources)
            .unwrap_or_else(|unusable| panic!("{}: {unusable}", entry.path().display()));
        assert_eq!((loaded.faults, loaded.warnings), (Vec::new(), Vec::new()), "{}", entry.path().display());
        assert!(!loaded.config.servers.is_empty(), "{}", entry.path().display());
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(
        names,
        ["analyst", "ci", "cluster", "home", "laptop", "team"],
        "README.md and docs/configuration.md list them"
    );
}
