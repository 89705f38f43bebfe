//! `nonet trust` for servers.toml files of project folders: lists them, trusts one, takes trust back.

use std::path::Path;

use anyhow::Context;
use nonet_config as config;
use nonet_store::{
    reloads::ReloadRequest,
    trusted_files::{TrustedFiles, TrustedState},
};
use nonet_text::fault::FaultCode;
use serde_json::json;

use super::{
    super::{FAILED, OK, found, reload, show},
    TrustArgs,
};

/// Whether a name is that of a file, not of a server or tool.
pub(super) fn is_file(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|name| name == config::FILE_NAME)
}

/// Lists trusted files, trusts the named ones, or takes their trust back.
pub(super) fn run(args: &TrustArgs) -> anyhow::Result<u8> {
    let files = TrustedFiles::of_user().context("there is no home folder, so no file can be trusted")?;
    if let Some(other) = args.names.iter().find(|name| !is_file(name)) {
        anyhow::bail!(
            "`{other}` is not the path of a servers.toml; trust files and definitions one after the other"
        );
    }
    if args.revoke {
        return revoke(&files, args);
    }
    if args.list || args.names.is_empty() {
        list(&files, args);
        return Ok(OK);
    }
    if !found::is_at_terminal() {
        let message = "nothing was trusted: only a person at a terminal can trust a servers.toml. To use one without a \
                       terminal, name it: `--config FILE`, or the variable NONET_CONFIG";
        show::refuse(FaultCode::Forbidden, message, args.json);
        return Ok(FAILED);
    }
    for name in &args.names {
        let file = Path::new(name);
        let text = config::read_text(file).with_context(|| format!("cannot read {name}"))?;
        let agreed = match args.yes {
            true => {
                found::show_outline(file, &text, "is trusted now");
                found::record(&files, file, &text).map(|()| true)?
            }
            false => found::ask(&files, file, &text, "is to be trusted")?,
        };
        if !agreed {
            return Ok(FAILED);
        }
        // A running gateway may have refused this text.
        if let Some(desk) = reload::desk(file).filter(|desk| desk.folder().exists())
            && let Err(error) = desk.ask(&ReloadRequest::new(None))
        {
            tracing::debug!(%error, "cannot ask the running gateways to read the file");
        }
        if !args.json {
            say!("Trusted {name}. Nonet asks again when somebody else changes it.");
        }
    }
    if args.json {
        list(&files, args);
    }
    Ok(OK)
}

fn revoke(files: &TrustedFiles, args: &TrustArgs) -> anyhow::Result<u8> {
    let mut unknown = Vec::new();
    for name in &args.names {
        if !files.revoke(Path::new(name))? {
            unknown.push(name.as_str());
        } else if !args.json {
            say!("{name} is not trusted any more. A gateway that already uses it keeps running.");
        }
    }
    if !unknown.is_empty() {
        let message =
            format!("not trusted before: {}; `nonet trust --files` lists what is", show::names(&unknown));
        show::refuse(FaultCode::NotFound, message, args.json);
        return Ok(FAILED);
    }
    if args.json {
        list(files, args);
    }
    Ok(OK)
}

fn list(files: &TrustedFiles, args: &TrustArgs) {
    let all = files.all();
    if args.json {
        return show::raw(&json!({ "files": all }).to_string());
    }
    if all.is_empty() {
        return say!("No servers.toml of a project's folder is trusted.");
    }
    for one in &all {
        let state = match one.state {
            TrustedState::Unchanged => "trusted",
            TrustedState::Changed => "changed since it was trusted: Nonet asks again",
            TrustedState::Missing => "no longer there",
        };
        say!("{} ({state})", show::clean(&one.file.to_string_lossy()));
    }
    say!("\nRun `nonet trust --revoke FILE` to take the trust in a file back.");
}
