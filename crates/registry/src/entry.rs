//! The entry of servers.toml for a server of a registry, and the values that it asks for.
//!
//! A program runs without a shell, by the launcher of its kind of package. What the server's author fixes is
//! written as it is; secrets, and required values that nobody has given yet, become variables.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::{
    FoundServer, UnpackedBundle,
    detail::{Argument, Input, Package, Remote},
};

/// The most values of one argument that may be repeated.
const MOST_REPEATED: usize = 50;

/// Values that the user gives, by key.
pub type Given = BTreeMap<String, Vec<String>>;

/// A way to run or reach a server.
#[derive(Clone, Copy, Debug)]
pub enum LaunchWay<'a> {
    /// A package.
    Package(&'a Package),
    /// An address.
    Remote(&'a Remote),
}

impl LaunchWay<'_> {
    /// Returns its kind: that of the package, or `remote`.
    pub fn kind(&self) -> &str {
        match self {
            Self::Package(package) => &package.registry_type,
            Self::Remote(_) => "remote",
        }
    }

    /// Returns how the package, at its version, is named to its launcher.
    pub fn reference(&self) -> Option<String> {
        let Self::Package(package) = self else { return None };
        let Package { identifier, version, .. } = package;
        Some(match (package.registry_type.as_str(), version) {
            ("npm" | "nuget", Some(version)) => format!("{identifier}@{version}"),
            ("pypi", Some(version)) => format!("{identifier}=={version}"),
            ("oci", Some(version)) if !has_tag(identifier) => format!("{identifier}:{version}"),
            _ => identifier.clone(),
        })
    }
}

/// Whether an image has a tag or a digest.
fn has_tag(image: &str) -> bool {
    image.contains('@') || image.rsplit('/').next().is_some_and(|last| last.contains(':'))
}

/// A value that the entry takes from a variable, or could take from the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedValue {
    /// Its key, as the user gives it.
    pub key: String,
    /// The variable that the entry names; none if the value is left out.
    pub variable: Option<String>,
    /// The value, if it is known.
    pub value: Option<String>,
    /// What it is for.
    pub what: String,
    /// Whether it is a secret.
    pub is_secret: bool,
    /// The only possible values.
    pub choices: Vec<String>,
}

/// An entry of servers.toml.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerEntry {
    /// Its keys.
    pub keys: Map<String, Value>,
    /// The values that its variables need.
    pub asked: Vec<AskedValue>,
    /// Values that the user may give besides.
    pub optional: Vec<AskedValue>,
}

/// Why there is no entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Nothing in the server can be run or reached.
    #[error(
        "`{name}` has {what}, and Nonet runs packages of npm, PyPI, NuGet, container images and MCPB bundles, and reaches addresses"
    )]
    NoWay {
        /// The server.
        name: String,
        /// What it has.
        what: String,
    },
    /// It has not the wanted one.
    #[error("`{name}` has no package of the kind `{kind}`; it has {what}")]
    NoSuchWay {
        /// The server.
        name: String,
        /// The wanted kind.
        kind: String,
        /// What it has.
        what: String,
    },
    /// A given value is none of the possible ones.
    #[error("`{key}` must be {must}")]
    WrongValue {
        /// Its key.
        key: String,
        /// What it must be.
        must: String,
    },
    /// A given key is not known.
    #[error("the server asks for no `{key}`; it asks for {known}")]
    NoSuchKey {
        /// The key.
        key: String,
        /// Those that are known.
        known: String,
    },
}

/// Returns the ways to run or reach a server, best first: a package before an address, as its author ordered them.
/// With `kind`, only those of that kind.
///
/// # Errors
///
/// If there is none.
pub fn ways<'a>(found: &'a FoundServer, kind: Option<&str>) -> Result<Vec<LaunchWay<'a>>, Unusable> {
    let detail = &found.detail;
    let is_usable = |package: &&Package| {
        let is_known = matches!(package.registry_type.as_str(), "npm" | "pypi" | "oci" | "nuget" | "mcpb");
        is_known && matches!(package.transport.kind.as_str(), "stdio" | "")
    };
    let mut remotes: Vec<&Remote> = detail.remotes.iter().filter(|remote| !remote.url.is_empty()).collect();
    remotes.sort_by_key(|remote| remote.kind == "sse");
    let packages = detail.packages.iter().filter(is_usable).map(LaunchWay::Package);
    let all: Vec<LaunchWay> = packages.chain(remotes.into_iter().map(LaunchWay::Remote)).collect();
    let kinds = |ways: Vec<String>| match ways.is_empty() {
        true => "neither packages nor addresses".to_owned(),
        false => ways.join(", "),
    };
    if all.is_empty() {
        let of = |package: &Package| {
            format!("a package of `{}` ({})", package.registry_type, package.transport.kind)
        };
        let what = kinds(detail.packages.iter().map(of).collect());
        return Err(Unusable::NoWay { name: detail.name.clone(), what });
    }
    let chosen: Vec<LaunchWay> =
        all.iter().copied().filter(|way| kind.is_none_or(|kind| way.kind() == kind)).collect();
    match chosen.is_empty() {
        false => Ok(chosen),
        true => Err(Unusable::NoSuchWay {
            name: detail.name.clone(),
            kind: kind.unwrap_or_default().into(),
            what: kinds(all.iter().map(|way| format!("`{}`", way.kind())).collect()),
        }),
    }
}

/// Returns the entry for a server. `name` is its name in servers.toml; a bundle is unpacked before.
///
/// # Errors
///
/// If a given value cannot be used.
pub fn entry(
    found: &FoundServer,
    way: LaunchWay<'_>,
    bundle: Option<&UnpackedBundle>,
    name: &str,
    given: &Given,
) -> Result<ServerEntry, Unusable> {
    let mut filling = Filling { name, given, used: Vec::new(), made: ServerEntry::default() };
    match (way, bundle) {
        (LaunchWay::Remote(remote), _) => filling.remote(remote)?,
        (LaunchWay::Package(_), Some(bundle)) => filling.bundle(bundle)?,
        (LaunchWay::Package(package), None) => {
            filling.package(package, way.reference().unwrap_or_default())?
        }
    }
    if let Some(key) = given.keys().find(|key| !filling.used.contains(key)) {
        let known = filling.used.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        let known = if known.is_empty() { "nothing".into() } else { known };
        return Err(Unusable::NoSuchKey { key: key.clone(), known });
    }
    let mut made = filling.made;
    let detail = &found.detail;
    if !detail.description.is_empty() {
        made.keys.insert("description".into(), json!(nonet_base::text::line(&detail.description, 200)));
    }
    made.keys.insert("registry".into(), json!(format!("{}@{}", detail.name, detail.version)));
    Ok(made)
}

/// The values of an entry, as they are filled in.
struct Filling<'a> {
    name: &'a str,
    given: &'a Given,
    /// The keys that the server asks for.
    used: Vec<String>,
    made: ServerEntry,
}

impl Filling<'_> {
    fn package(&mut self, package: &Package, reference: String) -> Result<(), Unusable> {
        let runtime = self.arguments(&package.runtime_arguments)?;
        let own = self.arguments(&package.package_arguments)?;
        let env = self.named(&package.environment_variables, true)?;
        // The author's hint chooses among programs that do the same, and nothing else.
        let hinted = |others: &[&'static str], usual: &'static str| {
            let hint = package.runtime_hint.as_deref();
            others.iter().copied().find(|other| hint == Some(*other)).unwrap_or(usual)
        };
        let (command, args): (&str, Vec<String>) = match package.registry_type.as_str() {
            "npm" => {
                let agrees = runtime.iter().any(|argument| argument == "-y" || argument == "--yes");
                let command = hinted(&["bunx"], "npx");
                let yes = (!agrees && command == "npx").then(|| "-y".to_owned());
                (command, yes.into_iter().chain(runtime).chain([reference]).chain(own).collect())
            }
            "pypi" => ("uvx", runtime.into_iter().chain([reference]).chain(own).collect()),
            "nuget" => {
                let dashes = (!own.is_empty()).then(|| "--".to_owned());
                let fixed = [reference, "--yes".to_owned()];
                ("dnx", runtime.into_iter().chain(fixed).chain(dashes).chain(own).collect())
            }
            _ => {
                let fixed = ["run", "-i", "--rm"].map(String::from);
                // Only their names are on the command line, which others on this machine can read.
                let passed = env.keys().flat_map(|name| ["-e".to_owned(), name.clone()]);
                let all = fixed.into_iter().chain(runtime).chain(passed).chain([reference]).chain(own);
                (hinted(&["podman"], "docker"), all.collect())
            }
        };
        self.starts(command, args, env);
        Ok(())
    }

    fn bundle(&mut self, bundle: &UnpackedBundle) -> Result<(), Unusable> {
        let mut chosen = BTreeMap::new();
        for (key, input) in &bundle.asked {
            chosen.insert(key.as_str(), self.values(key, input, false)?);
        }
        let (command, args, env) = bundle.filled(&chosen);
        self.starts(&command, args, env.into_iter().map(|(name, value)| (name, json!(value))).collect());
        Ok(())
    }

    fn starts(&mut self, command: &str, args: Vec<String>, env: Map<String, Value>) {
        self.made.keys.insert("command".into(), json!(command));
        self.made.keys.insert("args".into(), json!(args));
        if !env.is_empty() {
            self.made.keys.insert("env".into(), Value::Object(env));
        }
    }

    fn remote(&mut self, remote: &Remote) -> Result<(), Unusable> {
        let url = self.template(&remote.url, &remote.variables)?;
        self.made.keys.insert("url".into(), json!(url.unwrap_or_else(|| plain(&remote.url))));
        if remote.kind == "sse" {
            self.made.keys.insert("transport".into(), json!("sse"));
        }
        let headers = self.named(&remote.headers, false)?;
        if !headers.is_empty() {
            self.made.keys.insert("headers".into(), Value::Object(headers));
        }
        Ok(())
    }

    /// Returns the variables or headers that have a value.
    fn named(&mut self, inputs: &[Input], is_env: bool) -> Result<Map<String, Value>, Unusable> {
        let mut named = Map::new();
        for input in inputs.iter().filter(|input| !input.name.is_empty()) {
            if let Some(value) = self.values(&input.name, input, is_env)?.into_iter().next() {
                named.insert(input.name.clone(), json!(value));
            }
        }
        Ok(named)
    }

    /// Returns the words of arguments.
    fn arguments(&mut self, arguments: &[Argument]) -> Result<Vec<String>, Unusable> {
        let mut words = Vec::new();
        for argument in arguments {
            let Argument { input, value_hint, .. } = argument;
            let is_named = argument.kind == "named";
            let key = match (is_named, value_hint) {
                (true, _) => input.name.trim_start_matches('-'),
                (false, Some(hint)) => hint.as_str(),
                (false, None) => "",
            };
            let is_flag = is_named && input.format.as_deref() == Some("boolean") && input.value.is_none();
            let most = if argument.is_repeated { MOST_REPEATED } else { 1 };
            for value in self.values(key, input, false)?.into_iter().take(most) {
                match (is_named, is_flag) {
                    (true, true) if value == "true" => words.push(input.name.clone()),
                    (true, true) => {}
                    (true, false) => {
                        words.push(plain(&input.name));
                        words.extend((!value.is_empty()).then_some(value));
                    }
                    (false, _) => words.push(value),
                }
            }
        }
        Ok(words)
    }

    /// Returns the values of an input: what its author fixes, what the user gives, or a variable. Empty: it is left
    /// out.
    fn values(&mut self, key: &str, input: &Input, is_env: bool) -> Result<Vec<String>, Unusable> {
        if let Some(fixed) = &input.value {
            return Ok(self.template(fixed, &input.variables)?.into_iter().collect());
        }
        if key.is_empty() {
            return Ok(Vec::new());
        }
        self.used.push(key.into());
        let given = self.given.get(key).cloned().unwrap_or_default();
        for value in &given {
            fits(key, value, input)?;
        }
        let known = if given.is_empty() { input.default.clone().into_iter().collect() } else { given };
        let asked = |variable, value| AskedValue {
            key: key.into(),
            variable,
            value,
            what: about(input),
            is_secret: input.is_secret,
            choices: input.choices.clone(),
        };
        if !known.is_empty() && !input.is_secret {
            if self.given.get(key).is_none() {
                self.made.optional.push(asked(None, known.first().cloned()));
            }
            return Ok(known.iter().map(|value| plain(value)).collect());
        }
        if known.is_empty() && !input.is_required {
            self.made.optional.push(asked(None, None));
            return Ok(Vec::new());
        }
        let variable = if is_env { key.to_owned() } else { self.variable(key) };
        self.made.asked.push(asked(Some(variable.clone()), known.into_iter().next()));
        Ok(vec![format!("${{{variable}}}")])
    }

    /// Returns a text with the values of its variables; none if one that need not be there has no value.
    fn template(
        &mut self,
        text: &str,
        variables: &BTreeMap<String, Input>,
    ) -> Result<Option<String>, Unusable> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, behind) = rest.split_at(at);
            let is_dollar = before.ends_with('$');
            filled.push_str(before.strip_suffix('$').unwrap_or(before));
            let end = behind.find('}');
            let input = end.and_then(|end| Some((end, variables.get(&behind[1..end])?)));
            let Some((end, input)) = input else {
                // What is no variable stays as it is, and servers.toml must not take it for one of its own.
                filled.push_str(if is_dollar { "$${" } else { "{" });
                rest = &behind[1..];
                continue;
            };
            match self.values(&behind[1..end], input, false)?.into_iter().next() {
                Some(value) => filled.push_str(&value),
                None => return Ok(None),
            }
            rest = &behind[end + 1..];
        }
        filled.push_str(rest);
        Ok(Some(filled))
    }

    /// Returns the variable for a value that has no name of its own.
    fn variable(&self, key: &str) -> String {
        let raw = format!("{}_{key}", self.name);
        raw.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
    }
}

/// Returns a text that servers.toml reads as it is.
pub(crate) fn plain(text: &str) -> String {
    text.replace("${", "$${")
}

fn about(input: &Input) -> String {
    let what = input.description.as_deref().or(input.placeholder.as_deref()).unwrap_or_default();
    nonet_base::text::line(what, 200)
}

/// Checks a given value.
fn fits(key: &str, value: &str, input: &Input) -> Result<(), Unusable> {
    let wrong = |must: String| Err(Unusable::WrongValue { key: key.into(), must });
    if !input.choices.is_empty() && !input.choices.iter().any(|choice| choice == value) {
        return wrong(format!("one of {}", input.choices.join(", ")));
    }
    match input.format.as_deref() {
        Some("number") if value.parse::<f64>().is_err() => wrong("a number".into()),
        Some("boolean") if !matches!(value, "true" | "false") => wrong("true or false".into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(detail: Value) -> FoundServer {
        let detail = serde_json::from_value(detail).expect("a server");
        FoundServer { detail, is_latest: true, ..FoundServer::default() }
    }

    fn made(detail: &Value, kind: Option<&str>, given: &[(&str, &str)]) -> Result<ServerEntry, Unusable> {
        let found = found(detail.clone());
        let mut values = Given::new();
        for (key, value) in given {
            values.entry((*key).into()).or_default().push((*value).into());
        }
        entry(&found, ways(&found, kind)?[0], None, "shop", &values)
    }

    #[test]
    fn each_kind_of_package_has_its_launcher() {
        let check = |package: Value, expected: Value| {
            let detail = json!({ "name": "a.b/c", "version": "2.0.0", "packages": [package] });
            let mut keys = made(&detail, None, &[]).expect("an entry").keys;
            assert_eq!(keys.remove("registry"), Some(json!("a.b/c@2.0.0")));
            assert_eq!(Value::Object(keys), expected);
        };
        let package = |kind: &str, id: &str| json!({ "registryType": kind, "identifier": id, "version": "1.0", "transport": { "type": "stdio" } });
        check(package("npm", "@a/b"), json!({ "command": "npx", "args": ["-y", "@a/b@1.0"] }));
        check(package("pypi", "b"), json!({ "command": "uvx", "args": ["b==1.0"] }));
        check(package("nuget", "B"), json!({ "command": "dnx", "args": ["B@1.0", "--yes"] }));
        check(
            package("oci", "ghcr.io/a/b"),
            json!({ "command": "docker", "args": ["run", "-i", "--rm", "ghcr.io/a/b:1.0"] }),
        );
        check(
            package("oci", "host:5000/b"),
            json!({ "command": "docker", "args": ["run", "-i", "--rm", "host:5000/b:1.0"] }),
        );
        check(
            package("oci", "ghcr.io/a/b:3"),
            json!({ "command": "docker", "args": ["run", "-i", "--rm", "ghcr.io/a/b:3"] }),
        );
        let mut own = package("npm", "b");
        own["runtimeArguments"] = json!([{ "type": "positional", "value": "--yes" }]);
        own["runtimeHint"] = json!("/bin/sh");
        own["packageArguments"] = json!([
            { "type": "named", "name": "--log", "value": "{level}", "variables": { "level": { "default": "info" } } },
            { "type": "named", "name": "--quiet", "format": "boolean", "default": "true" },
            { "type": "named", "name": "--loud", "format": "boolean", "default": "false" },
            { "type": "named", "name": "--extra" },
            { "type": "positional", "value": "a ${HOME} {b}" },
        ]);
        check(
            own,
            json!({ "command": "npx", "args": ["--yes", "b@1.0", "--log", "info", "--quiet", "a $${HOME} {b}"] }),
        );
        let mut image = package("oci", "b:1");
        image["environmentVariables"] = json!([
            { "name": "TOKEN", "isRequired": true, "isSecret": true }, { "name": "MODE", "value": "fast" }, { "name": "MORE" },
        ]);
        check(
            image,
            json!({ "command": "docker", "args": ["run", "-i", "--rm", "-e", "TOKEN", "-e", "MODE", "b:1"], "env": { "TOKEN": "${TOKEN}", "MODE": "fast" } }),
        );
    }

    #[test]
    fn an_address_is_filled_and_streamable_http_comes_first() {
        let detail = json!({
            "name": "a.b/c", "version": "1",
            "remotes": [
                { "type": "sse", "url": "https://a.example/sse" },
                { "type": "streamable-http", "url": "https://{tenant}.a.example/mcp", "variables": { "tenant": { "isRequired": true } },
                  "headers": [
                    { "name": "Authorization", "value": "Bearer {key}", "variables": { "key": { "isRequired": true, "isSecret": true, "description": "Your key" } } },
                    { "name": "X-Space", "default": "main" },
                  ] },
            ],
        });
        let open = made(&detail, None, &[]).expect("an entry");
        assert_eq!(open.keys["url"], "https://${SHOP_TENANT}.a.example/mcp");
        assert_eq!(open.keys["headers"], json!({ "Authorization": "Bearer ${SHOP_KEY}", "X-Space": "main" }));
        let asked: Vec<(&str, Option<&str>, bool)> =
            open.asked.iter().map(|one| (one.key.as_str(), one.variable.as_deref(), one.is_secret)).collect();
        assert_eq!(asked, [("tenant", Some("SHOP_TENANT"), false), ("key", Some("SHOP_KEY"), true)]);
        let full = made(&detail, None, &[("tenant", "acme"), ("key", "s3cret"), ("X-Space", "lab")])
            .expect("an entry");
        assert_eq!(full.keys["url"], "https://acme.a.example/mcp");
        assert_eq!(
            full.keys["headers"],
            json!({ "Authorization": "Bearer ${SHOP_KEY}", "X-Space": "lab" }),
            "no secret is written"
        );
        assert_eq!(full.asked[0].value.as_deref(), Some("s3cret"));
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        let package = json!({ "registryType": "npm", "identifier": "b", "environmentVariables": [
            { "name": "MODE", "choices": ["a", "b"] }, { "name": "PORT", "format": "number" },
        ] });
        let detail = json!({ "name": "a.b/c", "version": "1", "packages": [package] });
        let check = |given: &[(&str, &str)], kind: Option<&str>, expected: &str| {
            assert_eq!(made(&detail, kind, given).expect_err("a fault").to_string(), expected);
        };
        check(&[("MODE", "c")], None, "`MODE` must be one of a, b");
        check(&[("PORT", "x")], None, "`PORT` must be a number");
        check(&[("MOOD", "a")], None, "the server asks for no `MOOD`; it asks for `MODE`, `PORT`");
        check(&[], Some("oci"), "`a.b/c` has no package of the kind `oci`; it has `npm`");
        let cargo = json!({ "name": "a.b/c", "version": "1", "packages": [{ "registryType": "cargo", "identifier": "b", "transport": { "type": "stdio" } }] });
        assert!(
            made(&cargo, None, &[])
                .expect_err("a fault")
                .to_string()
                .contains("a package of `cargo` (stdio)")
        );
        let over_http = json!({ "name": "a.b/c", "version": "1", "packages": [{ "registryType": "npm", "identifier": "b", "transport": { "type": "sse" } }] });
        assert!(made(&over_http, None, &[]).is_err(), "a program that listens");
    }
}
