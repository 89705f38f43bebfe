//! Imports on a machine without a keyring: secrets go into `secrets.env` beside servers.toml.

use nonet_config::{
    keyring::Keyring,
    secrets_file::{self, SecretsFile},
};

use super::*;

const TOKEN: &str = "ghp_0123456789abcdefghijklmnopqrstuvwxyz";
const MANNER: ImportOptions = ImportOptions { replace: false, keyring: None, file: true };

fn github(token: &str) -> String {
    config(json!({
        "github": { "command": "gh-mcp", "env": { "GITHUB_TOKEN": token, "LOG": "warn" } },
        "docs": { "url": "https://docs.example/mcp", "headers": { "Authorization": format!("Bearer {token}x") } },
    }))
}

fn file(world: &World) -> SecretsFile {
    SecretsFile::read(&secrets_file::beside(&world.servers_toml())).unwrap()
}

fn kept(imported: &ImportPlan) -> Vec<(&str, bool)> {
    assert!(imported.secrets.iter().all(|kept| kept.store == SecretStore::File));
    imported.secrets.iter().map(|kept| (kept.name.as_str(), kept.there)).collect()
}

#[test]
fn secrets_go_into_a_file_for_the_user_only() {
    let world = World::new(Os::Linux);
    let imported = world.try_import(&github(TOKEN), MANNER).unwrap();
    assert_eq!(kept(&imported), [("DOCS_TOKEN", false), ("GITHUB_TOKEN", false)]);
    assert!(imported.variables.is_empty() && !imported.is_nothing());
    assert!(!file(&world).was_there(), "nothing is written before it is applied");
    imported.apply().unwrap();
    let now = file(&world);
    assert_eq!((now.get("GITHUB_TOKEN"), now.is_open), (Some(TOKEN), false));
    assert_eq!(now.get("DOCS_TOKEN"), Some(format!("{TOKEN}x").as_str()));
    let text = fs::read_to_string(world.servers_toml()).unwrap();
    assert!(text.contains(r#"GITHUB_TOKEN = "${GITHUB_TOKEN}""#) && !text.contains(TOKEN), "{text}");
    let again = world.try_import(&github(TOKEN), MANNER).unwrap();
    assert_eq!(kept(&again), [("DOCS_TOKEN", true), ("GITHUB_TOKEN", true)]);
    assert!(again.is_nothing());
    // Another account of the same server has its own secret.
    let other = world.try_import(&github("ghp_other_account_0123456789"), MANNER).unwrap();
    assert_eq!(done(&other), "github added_as github-2, docs added_as docs-2");
    assert_eq!(kept(&other), [("DOCS_2_TOKEN", false), ("GITHUB_2_GITHUB_TOKEN", false)]);
    // Without a store for secrets, variables in the file count as set.
    let plain = world.import(&github(TOKEN), false);
    assert!(
        plain.change.is_nothing() && plain.variables.iter().all(|variable| variable.set && variable.kept)
    );
}

#[test]
fn secrets_of_an_earlier_import_are_kept_by_the_next() {
    let world = World::new(Os::Linux);
    world.import(&github(TOKEN), false).apply().unwrap();
    assert!(!file(&world).was_there());
    let keyring = Keyring::in_memory(&[]);
    for manner in [MANNER, ImportOptions { keyring: Some(&keyring), ..MANNER }] {
        let imported = world.try_import(&github(TOKEN), manner).unwrap();
        assert!(imported.change.is_nothing(), "{}", done(&imported));
        assert_eq!(kept(&imported), [("DOCS_TOKEN", false), ("GITHUB_TOKEN", false)]);
    }
    world.try_import(&github(TOKEN), MANNER).unwrap().apply().unwrap();
    assert_eq!(file(&world).get("GITHUB_TOKEN"), Some(TOKEN));
}

#[test]
fn a_name_that_has_another_value_here_is_not_taken() {
    // A host started elsewhere would see one value, and a shell the other.
    let world = World::new(Os::Linux).with("GITHUB_TOKEN", "of the shell");
    let imported = world.try_import(&github(TOKEN), MANNER).unwrap();
    assert_eq!(kept(&imported), [("DOCS_TOKEN", false), ("GITHUB_TOKEN_2", false)]);
    let world = World::new(Os::Linux).with("GITHUB_TOKEN", TOKEN);
    let imported = world.try_import(&github(TOKEN), MANNER).unwrap();
    assert_eq!(kept(&imported), [("DOCS_TOKEN", false), ("GITHUB_TOKEN", false)]);
}

#[test]
fn secrets_and_servers_are_written_together_or_not_at_all() {
    let world = World::new(Os::Linux);
    let imported = world.try_import(&github(TOKEN), MANNER).unwrap();
    world.write(&world.servers_toml(), "# somebody else's");
    assert!(imported.apply().is_err());
    assert!(!file(&world).was_there());
    // A value set in the meantime stays.
    let imported = world.try_import(&github(TOKEN), MANNER).unwrap();
    world.write(&secrets_file::beside(&world.servers_toml()), "GITHUB_TOKEN=mine\n");
    let fault = imported.apply().unwrap_err().to_string();
    assert!(
        fault.contains("secrets.env: cannot write the secrets: another program has just changed it"),
        "{fault}"
    );
    assert_eq!(file(&world).get("GITHUB_TOKEN"), Some("mine"));
    assert_eq!(fs::read_to_string(world.servers_toml()).unwrap(), "# somebody else's");
}

#[test]
fn a_repository_is_told_to_ignore_the_secrets() {
    let notes = |ignored: &str| {
        let world = World::new(Os::Linux);
        fs::create_dir(world.machine.current.join(".git")).unwrap();
        world.write(&world.machine.current.join(".gitignore"), ignored);
        let notes = world.try_import(&github(TOKEN), MANNER).unwrap().notes;
        notes.iter().any(|note| note.contains(".gitignore"))
    };
    assert!(notes("target\n"));
    assert!(!notes("target\n/secrets.env\n"));
}

#[test]
fn a_setup_takes_what_holds_for_all_projects() {
    let world = World::new(Os::Linux);
    let project = json!({ "mcpServers": { "local": { "command": "l" } } });
    let text = json!({
        "mcpServers": { "user": { "command": "u" } },
        "projects": { world.machine.current.to_str().unwrap(): project },
    });
    world.host_file("claude-code", &text.to_string());
    world.write(&world.machine.current.join(".mcp.json"), &config(json!({ "shared": { "command": "s" } })));
    let names = |source| {
        let imported = import(source, &world.servers_toml(), MANNER, &world.machine).unwrap();
        imported.rows.into_iter().map(|row| row.name).collect::<Vec<_>>()
    };
    let hosts = [find("claude-code").unwrap(), find("cursor").unwrap()];
    assert_eq!(names(ImportSource::Users(&hosts, &[])), ["user"]);
    assert_eq!(names(ImportSource::All), ["user", "local", "shared"]);
}
