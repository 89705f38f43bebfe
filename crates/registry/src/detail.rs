//! `server.json`, as a registry has it: only what Nonet needs, and tolerant of the rest.

use std::collections::BTreeMap;

use serde::Deserialize;

/// What a registry says of one version of a server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServerDetail {
    /// `NAMESPACE/NAME`.
    pub name: String,
    /// One line.
    pub description: String,
    /// The name for people.
    pub title: Option<String>,
    /// The version, in any form.
    pub version: String,
    /// Its site.
    pub website_url: Option<String>,
    /// Where its source is.
    pub repository: Option<Repository>,
    /// The programs.
    pub packages: Vec<Package>,
    /// The addresses.
    pub remotes: Vec<Remote>,
}

/// Where the source of a server is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Repository {
    /// Its address.
    pub url: String,
}

/// A package that has a server's program.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Package {
    /// `npm`, `pypi`, `oci`, `nuget`, `mcpb`, or another one.
    pub registry_type: String,
    /// Its name, an image, or an address.
    pub identifier: String,
    /// The package's version.
    pub version: Option<String>,
    /// SHA-256 of the file, in hex.
    pub file_sha256: Option<String>,
    /// The launcher that its author means.
    pub runtime_hint: Option<String>,
    /// How it speaks.
    pub transport: Transport,
    /// Arguments of the launcher.
    pub runtime_arguments: Vec<Argument>,
    /// Arguments of the program.
    pub package_arguments: Vec<Argument>,
    /// Its variables.
    pub environment_variables: Vec<Input>,
}

/// How a package speaks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Transport {
    /// `stdio`, `streamable-http` or `sse`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// A server at an address.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Remote {
    /// `streamable-http` or `sse`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The address, with `{variables}`.
    pub url: String,
    /// Headers of each request.
    pub headers: Vec<Input>,
    /// The variables of the address.
    pub variables: BTreeMap<String, Input>,
}

/// A value that the user may choose.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Input {
    /// The variable or header.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// Whether the server does not work without it.
    pub is_required: bool,
    /// Whether it is a secret.
    pub is_secret: bool,
    /// `string`, `number`, `boolean` or `filepath`.
    pub format: Option<String>,
    /// The fixed value, with `{variables}`.
    pub value: Option<String>,
    /// The value if the user chooses none.
    pub default: Option<String>,
    /// An example.
    pub placeholder: Option<String>,
    /// The only possible values.
    pub choices: Vec<String>,
    /// The variables of `value`.
    pub variables: BTreeMap<String, Input>,
}

/// An argument of a command line.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Argument {
    /// `positional` or `named`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What a positional one is, for people.
    pub value_hint: Option<String>,
    /// Whether there may be several.
    pub is_repeated: bool,
    /// The value; its name is that of a named one, with its dashes.
    #[serde(flatten)]
    pub input: Input,
}

impl ServerDetail {
    /// Returns the name for people.
    pub fn shown(&self) -> &str {
        self.title.as_deref().unwrap_or_else(|| self.name.rsplit('/').next().unwrap_or_default())
    }
}
