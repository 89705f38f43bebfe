//! Imports servers from hosts' files into servers.toml, one by one.

use std::{collections::BTreeMap, path::Path, time::Duration};

pub use nonet_api::setup::RemainingServer;
use nonet_config::{
    keyring::{self, Keyring},
    secrets_file::{self, SecretsFile},
};

use super::{
    Host, HostFault, Machine, Os,
    find::find,
    imported::{ImportOutcome, ImportPlan, ImportRow},
    join::ImportMerge,
    listed,
    servers::ServersToml,
};

/// The source of an import.
#[derive(Clone, Copy, Debug)]
pub enum ImportSource<'a> {
    /// Every host that is on this machine.
    All,
    /// A host's files: the user's, and the current project's.
    Host(&'static Host),
    /// The user-scope files of these hosts, if they exist, without the servers that the user leaves where
    /// they are.
    Users(&'a [&'static Host], &'a [RemainingServer]),
    /// One file, of any host.
    File(&'a Path),
    /// Pasted text in the format of such a file, without the servers of these names.
    Text(&'a str, &'a [String]),
}

/// How servers are imported. Secrets without a store become variables that the user sets.
#[derive(Clone, Copy, Default)]
pub struct ImportOptions<'a> {
    /// Whether to replace servers of the same name with a different connection.
    pub replace: bool,
    /// Where new secrets go.
    pub keyring: Option<&'a Keyring>,
    /// Whether secrets that servers.toml names as variables go into `secrets.env` beside it; without a
    /// keyring, new secrets go there too.
    pub file: bool,
}

/// Reads servers and works out the servers.toml that contains them. Nothing is written before
/// [`FileChange::apply`].
///
/// Invalid names are adapted for servers.toml. If another server has the name, a number is added: `github-2`;
/// with `replace`, a server from before the import is replaced instead. Two servers are the same if their
/// connections are; other keys in servers.toml (tags, rules, times) do not matter, and stay.
///
/// Secrets go into the keyring or `secrets.env`, or become variables. An existing secret of the same name
/// with another value stays, and the new one gets another name.
pub fn import(
    source: ImportSource,
    servers_toml: &Path,
    manner: ImportOptions,
    machine: &Machine,
) -> Result<ImportPlan, HostFault> {
    let found = find(source, machine)?;
    let mut joining = ImportMerge::new(ServersToml::read(servers_toml)?, &found.entries, manner, machine)?;
    let rows: Vec<_> = found.entries.iter().map(|found| joining.join(found)).collect();
    joining.apply_to_twins();
    let mut change = joining.doc.change(machine)?;
    // Added servers can be removed again; replaced servers would be lost.
    change.backup = rows.iter().any(|row| matches!(row.done, ImportOutcome::Replaced { .. }));
    change.secrets.extend(found.secrets);
    let mut plan = joining.plan(rows, change)?;
    let mut notes = found.notes;
    notes.extend(differences(&plan.rows));
    if machine.os != Os::Windows && plan.variables.iter().any(|variable| !variable.set) {
        notes.push(
            "a client that is not started from a shell does not see the shell's variables; `secrets.env` beside servers.toml \
             works for every client"
                .into(),
        );
    }
    notes.append(&mut plan.notes);
    plan.notes = notes;
    Ok(plan)
}

/// Returns a note for each server for which clients have different rules.
fn differences(rows: &[ImportRow]) -> Vec<String> {
    let mut servers: BTreeMap<&str, Vec<&ImportRow>> = BTreeMap::new();
    for row in rows {
        servers.entry(row.done.server().unwrap_or_default()).or_default().push(row);
    }
    servers.remove("");
    servers.retain(|_, rows| rows.iter().any(|row| row.strictness != rows[0].strictness));
    let note = |(server, rows): (&str, Vec<&ImportRow>)| {
        let mut clients: Vec<&str> = rows.iter().filter_map(|row| row.from.host).collect();
        clients.dedup();
        format!(
            "`{server}` has different rules in {}: the strictest for each tool counts, for every client",
            listed(&clients)
        )
    };
    servers.into_iter().map(note).collect()
}

/// Works out an edit of servers.toml whose secrets are stored: in the keyring if there is one, else in
/// `secrets.env`. The keyring is asked only if there are secrets, and may take at most `limit`; it is
/// returned if used.
pub fn keeping_secrets<T: AsMut<ImportPlan>, E>(
    limit: Duration,
    replace: bool,
    work: impl Fn(ImportOptions<'_>) -> Result<T, E>,
    has_secrets: fn(&ImportPlan) -> bool,
) -> Result<(T, Option<Keyring>), E> {
    let options = ImportOptions { replace, keyring: None, file: true };
    let mut edit = work(options)?;
    let imported = edit.as_mut();
    if has_secrets(imported) {
        let keyring = Keyring::system(limit);
        match usable(&keyring) {
            Ok(()) => {
                return Ok((work(ImportOptions { keyring: Some(&keyring), ..options })?, Some(keyring)));
            }
            Err(keyring::Error::Missing(_)) => {}
            Err(error) => imported.notes.push(format!("{error}, so it is not used")),
        }
    }
    Ok((edit, None))
}

/// Returns the `secrets.env` beside a servers.toml.
pub(super) fn secrets_beside(servers_toml: &Path) -> Result<SecretsFile, HostFault> {
    let path = secrets_file::beside(servers_toml);
    SecretsFile::read(&path).map_err(|source| {
        let message = format!("cannot read the file: {source}");
        HostFault::new(message, "Fix the file or move it away.").within(&path).because(source)
    })
}

/// Whether a file in a git repository may be committed: no `.gitignore` in a parent folder names it.
pub(super) fn is_tracked(file: &Path) -> bool {
    let ignores = |folder: &Path| {
        let text = std::fs::read_to_string(folder.join(".gitignore")).unwrap_or_default();
        let names = ["secrets.env", "*.env", "*"];
        text.lines().any(|line| names.contains(&line.trim().trim_start_matches('/')))
    };
    let folders: Vec<_> = file.ancestors().skip(1).collect();
    let Some(root) = folders.iter().position(|folder| folder.join(".git").exists()) else { return false };
    !folders[..=root].iter().any(|folder| ignores(folder))
}

/// Whether a keyring is usable. A locked keyring asks its user.
pub fn usable(keyring: &Keyring) -> Result<(), keyring::Error> {
    match keyring.get("NONET_IMPORT") {
        Ok(_) | Err(keyring::Error::NoSecret(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn unusable(error: &keyring::Error) -> HostFault {
    let remedy = format!(
        "{} Nothing was changed; without `--keyring` secrets go into `secrets.env` beside servers.toml.",
        error.remedy()
    );
    HostFault::new(error.to_string(), remedy)
}
