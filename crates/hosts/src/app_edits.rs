//! Edits of apps in servers.toml. Everything else in the file stays byte for byte.

use std::path::Path;

use nonet_config::{self as config, ValueSources, toml_value, written_key};
use serde_json::{Map, Value};

use super::{FileChange, HostFault, Machine, servers::ServersToml, shortened};

/// Works out a servers.toml with one more app. `entry` has the keys of `[apps.NAME]`. A missing file is
/// created. An app that is there already is a fault, and so is an entry that the gateway would leave out.
pub fn add_app(
    servers_toml: &Path,
    name: &str,
    entry: &Map<String, Value>,
    machine: &Machine,
) -> Result<FileChange, HostFault> {
    let doc = ServersToml::read(servers_toml)?;
    if doc.value()["apps"].get(name).is_some() {
        let remedy = "Use another name, or ask the user to remove the entry first.";
        let message = format!("there is an app `{}` already", shortened(name));
        return Err(HostFault::new(message, remedy).within(servers_toml));
    }
    let before = doc.text.plain();
    let mut after = before.trim_end().to_string();
    after.push_str(&format!("\n\n[apps.{}]\n", written_key(name)));
    for (key, value) in entry {
        after.push_str(&format!("{} = {}\n", written_key(key), toml_value(value)));
    }
    let read = config::parse(&after, servers_toml, ValueSources::NONE);
    let unread = |error: config::LoadError| HostFault::new(error.to_string(), "Add the app by hand.");
    let read = read.map_err(|error| unread(error).within(servers_toml))?;
    if let Some(left_out) = read.config.left_out_apps.get(name) {
        let message = format!("the app `{}` cannot be added: {}", shortened(name), left_out.why());
        return Err(HostFault::new(message, "Correct that, and try again.").within(servers_toml));
    }
    let mut change = doc.change_to(&after, machine);
    change.told = vec![format!("[apps.{}] is added to {}.", written_key(name), servers_toml.display())];
    Ok(change)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_app_is_added_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("servers.toml");
        std::fs::write(&file, "# mine\n[servers.a]\ncommand = \"x\"\n").expect("written");
        let machine = Machine::this().expect("a machine");
        let entry =
            json!({ "description": "Says \"hi\"", "script": "a.js", "input_schema": { "type": "object" } });
        let entry = entry.as_object().expect("an object");
        let change = add_app(&file, "hi", entry, &machine).expect("it can be added");
        let (before, after) = change.texts().expect("texts");
        assert!(after.starts_with(before), "{after}");
        assert!(after.ends_with("[apps.hi]\ndescription = 'Says \"hi\"'\nscript = \"a.js\"\ninput_schema = { type = \"object\" }\n"), "{after}");
        change.apply().expect("applied");
        assert!(
            add_app(&file, "hi", entry, &machine).is_err_and(|fault| fault.to_string().contains("already"))
        );
        let bad = json!({ "script": "a.js", "steps": [] });
        assert!(add_app(&file, "bad", bad.as_object().expect("an object"), &machine).is_err());
        assert!(add_app(&file, "Not a name", entry, &machine).is_err());
    }
}
