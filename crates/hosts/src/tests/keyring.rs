//! Imports with a keyring.

use nonet_config::keyring::{self, Keyring};

use super::*;

const TOKEN: &str = "ghp_0123456789abcdefghijklmnopqrstuvwxyz";

fn github(token: &str) -> String {
    config(json!({
        "github": { "command": "gh-mcp", "env": { "GITHUB_TOKEN": token, "LOG": "warn" } },
        "docs": { "url": "https://docs.example/mcp", "headers": { "Authorization": format!("Bearer {token}x") } },
    }))
}

fn to(keyring: &Keyring) -> ImportOptions<'_> {
    ImportOptions { keyring: Some(keyring), ..ImportOptions::default() }
}

fn toml(world: &World) -> String {
    fs::read_to_string(world.servers_toml()).unwrap_or_default()
}

fn kept(imported: &ImportPlan) -> Vec<(&str, bool)> {
    imported.secrets.iter().map(|kept| (kept.name.as_str(), kept.there)).collect()
}

#[test]
fn secrets_go_into_the_keyring_when_the_file_is_written() {
    let (world, keyring) = (World::new(Os::Linux), Keyring::in_memory(&[]));
    let imported = world.try_import(&github(TOKEN), to(&keyring)).unwrap();
    assert_eq!(kept(&imported), [("DOCS_TOKEN", false), ("GITHUB_TOKEN", false)]);
    assert!(imported.variables.is_empty());
    // As with --dry-run: nothing is stored before the import is applied.
    assert!(matches!(keyring.get("GITHUB_TOKEN"), Err(keyring::Error::NoSecret(_))));
    assert!(!imported.change.diff().contains(TOKEN));
    imported.apply().unwrap();
    assert_eq!(keyring.get("GITHUB_TOKEN").as_deref(), Ok(TOKEN));
    assert_eq!(keyring.get("DOCS_TOKEN"), Ok(format!("{TOKEN}x")));
    let text = toml(&world);
    assert!(text.contains(r#"GITHUB_TOKEN = "${keyring:GITHUB_TOKEN}", LOG = "warn""#), "{text}");
    assert!(text.contains(r#"Authorization = "Bearer ${keyring:DOCS_TOKEN}""#), "{text}");
    // A repetition changes nothing, with or without the keyring.
    let again = world.try_import(&github(TOKEN), to(&keyring)).unwrap();
    assert_eq!(kept(&again), [("DOCS_TOKEN", true), ("GITHUB_TOKEN", true)]);
    assert!(again.change.is_nothing());
    let without = world.import(&github(TOKEN), false);
    assert!(without.change.is_nothing() && without.variables.is_empty(), "{}", done(&without));
    assert_eq!(without.rows[0].notes, ["`GITHUB_TOKEN` in the keyring, so secrets were not compared"]);
    // On a machine without them in its keyring, secrets are stored under the file's names.
    let other = Keyring::in_memory(&[]);
    let moved = world.try_import(&github(TOKEN), to(&other)).unwrap();
    assert!(moved.change.is_nothing());
    moved.apply().unwrap();
    assert_eq!(other.get("GITHUB_TOKEN").as_deref(), Ok(TOKEN));
}

#[test]
fn the_keyring_goes_before_the_file() {
    let (world, keyring) = (World::new(Os::Linux), Keyring::in_memory(&[]));
    let manner = ImportOptions { replace: false, keyring: Some(&keyring), file: true };
    let imported = world.try_import(&github(TOKEN), manner).unwrap();
    assert!(imported.secrets.iter().all(|kept| kept.store == SecretStore::Keyring), "{:?}", imported.secrets);
    imported.apply().unwrap();
    assert_eq!(keyring.get("GITHUB_TOKEN").as_deref(), Ok(TOKEN));
    assert!(!imported.secrets_file().exists());
    assert!(world.try_import(&github(TOKEN), manner).unwrap().is_nothing());
}

#[test]
fn a_secret_that_is_there_with_another_value_stays() {
    let (world, keyring) =
        (World::new(Os::Linux), Keyring::in_memory(&[("GITHUB_TOKEN", "of something else")]));
    let imported = world.try_import(&github(TOKEN), to(&keyring)).unwrap();
    imported.apply().unwrap();
    assert_eq!(keyring.get("GITHUB_TOKEN").as_deref(), Ok("of something else"));
    assert_eq!(keyring.get("GITHUB_GITHUB_TOKEN").or(keyring.get("GITHUB_TOKEN_2")).as_deref(), Ok(TOKEN));
    // A secret stored in between is not overwritten either, and the ones just stored are removed again.
    let (world, keyring) = (World::new(Os::Linux), Keyring::in_memory(&[]));
    let imported = world.try_import(&github(TOKEN), to(&keyring)).unwrap();
    keyring.set("GITHUB_TOKEN", "quicker").unwrap();
    let fault = imported.apply().unwrap_err().to_string();
    assert!(fault.contains("just stored a secret `GITHUB_TOKEN`"), "{fault}");
    assert_eq!(keyring.get("GITHUB_TOKEN").as_deref(), Ok("quicker"));
    assert!(keyring.get("DOCS_TOKEN").is_err());
    assert_eq!(toml(&world), "");
}

#[test]
fn secrets_of_a_file_that_cannot_be_written_are_taken_out_again() {
    let (world, keyring) = (World::new(Os::Linux), Keyring::in_memory(&[]));
    let imported = world.try_import(&github(TOKEN), to(&keyring)).unwrap();
    world.write(&world.servers_toml(), "# somebody else's");
    assert!(imported.apply().is_err());
    assert!(keyring.get("GITHUB_TOKEN").is_err() && keyring.get("DOCS_TOKEN").is_err());
}

#[test]
fn a_keyring_that_cannot_be_used_is_told_and_nothing_is_changed() {
    let world = World::new(Os::Linux);
    let fault = world.try_import(&github(TOKEN), to(&Keyring::absent())).err().unwrap().to_string();
    assert_snapshot!(fault);
    assert_eq!(toml(&world), "");
}

#[test]
fn with_replace_what_was_a_variable_moves_into_the_keyring() {
    let (world, keyring) = (World::new(Os::Linux), Keyring::in_memory(&[]));
    world.import(&github(TOKEN), false).apply().unwrap();
    assert!(toml(&world).contains("${GITHUB_TOKEN}"));
    let kept = world.try_import(&github(TOKEN), to(&keyring)).unwrap();
    assert!(kept.change.is_nothing(), "{}", done(&kept));
    let manner = ImportOptions { replace: true, keyring: Some(&keyring), file: false };
    let moved = world.try_import(&github(TOKEN), manner).unwrap();
    assert_eq!(done(&moved), "github replaced github, docs replaced docs");
    moved.apply().unwrap();
    let text = toml(&world);
    assert!(text.contains("${keyring:GITHUB_TOKEN}") && !text.contains("${GITHUB_TOKEN}"), "{text}");
    assert_eq!(keyring.get("GITHUB_TOKEN").as_deref(), Ok(TOKEN));
}
