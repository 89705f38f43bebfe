//! `nonet ui`: the page of this machine's shared gateway, in the browser.

use std::path::Path;

use clap::Args;
use nonet_config::{FileTrust, LoadedConfig};
use nonet_store::shared::{PageLink, SharedPlace};

use super::{OK, serve, signal};
use crate::serve::UserPage;

/// Where a display may be missing, one of these variables must be set for a browser to be shown.
const DISPLAYS: [&str; 4] = ["BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"];

/// The arguments of the page.
#[derive(Debug, Args)]
pub(super) struct UiArgs {
    /// Print the link without opening a browser
    #[arg(long)]
    pub no_browser: bool,
    /// Serve the page from a gateway in this process until Ctrl-C, instead of the shared gateway's
    #[arg(long)]
    pub here: bool,
    /// Not for this command: a gateway over HTTP prints the link of its own page
    #[arg(long, value_name = "URL", hide = true, conflicts_with_all = ["no_browser", "here"])]
    pub url: Option<String>,
}

/// Refuses a gateway's address: its page is not for other machines.
pub(super) fn of_address(url: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "the gateway at {url} does not share the link to its page with other programs: on the gateway's machine, `nonet ui` without \
         `--url` finds it. `nonet serve --http` prints the link when it starts at a terminal, after `live page at`"
    )
}

/// Shows the page, and starts its gateway if none is running.
pub(super) async fn run(loaded: LoadedConfig, args: &UiArgs) -> anyhow::Result<u8> {
    let config = &loaded.config;
    let file = config.file.clone();
    anyhow::ensure!(
        config.gateway.page,
        "the page is switched off: remove `page = false` from [gateway] in {}",
        file.display()
    );
    serve::make_folder(&file);
    let by_trust = loaded.trust != FileTrust::NotNeeded;
    let place = SharedPlace::of(&file)?.by_trust(by_trust);
    // Without a file there is nothing that clients could share.
    if args.here || cfg!(not(unix)) || !file.exists() {
        return here(loaded, &place, args).await;
    }
    let page = ask(&place, &file).await?;
    if !config.gateway.shared && !page.over_http {
        eprintln!(
            "nonet: clients that start `nonet` run their own gateways, which the page lists at its top; `shared = true` in \
             [gateway] of {} gives them one gateway",
            file.display()
        );
    }
    show(page, args).await;
    Ok(OK)
}

/// Asks the shared gateway for its page, and starts that gateway if none is running.
#[cfg(unix)]
async fn ask(place: &SharedPlace, file: &Path) -> anyhow::Result<PageLink> {
    use anyhow::Context;

    use nonet_store::shared::Hello;
    let joined = place.join(&Hello::for_page()).await?;
    super::ask::tell_version(&joined.version, file);
    joined.page.with_context(|| {
        let restart = nonet_config::shell::nonet("restart", file);
        format!("the running gateway is an older version, without a page for `nonet ui`: run `{restart}`")
    })
}

#[cfg(not(unix))]
async fn ask(_place: &SharedPlace, _file: &Path) -> anyhow::Result<PageLink> {
    anyhow::bail!("a shared gateway is not supported on this system yet")
}

/// Serves the page from a gateway of this process until the user ends it.
async fn here(loaded: LoadedConfig, place: &SharedPlace, args: &UiArgs) -> anyhow::Result<u8> {
    let (file, by_trust) = (loaded.config.file.clone(), loaded.trust != FileTrust::NotNeeded);
    let gateway = super::gateway(loaded, true);
    serve::watch(&gateway, &file, by_trust);
    gateway.connect();
    gateway.errands.keep_time();
    let page = UserPage::new(gateway.clone(), place.page_files("here."));
    let code = match page.open().await {
        Ok(link) => {
            eprintln!("nonet: the page is served until Ctrl-C");
            show(link, args).await;
            Ok(signal::stopped().await)
        }
        Err(why) => Err(anyhow::anyhow!(why)),
    };
    // A second Ctrl-C does not wait for slow servers.
    tokio::select! {
        () = gateway.stop() => code,
        code = signal::stopped() => Ok(code),
    }
}

/// Prints the link, and opens a browser.
async fn show(page: PageLink, args: &UiArgs) {
    raw!("{}", page.link);
    if args.no_browser {
        return;
    }
    let Some(file) = page.file.filter(|_| has_display()) else {
        eprintln!("nonet: there is no browser to open here; open the link above in a browser");
        return;
    };
    // In a separate thread: a browser in the terminal blocks. The browser gets a file name, because others
    // can see its arguments.
    let opened = tokio::task::spawn_blocking(move || open(&file)).await;
    match opened {
        Ok(Ok(())) => eprintln!("nonet: the page opens in your browser; if it does not, open the link above"),
        Ok(Err(error)) => eprintln!("nonet: cannot open a browser ({error}); open the link above in one"),
        Err(_) => {}
    }
}

fn open(file: &Path) -> std::io::Result<()> {
    let name = file.to_str().ok_or_else(|| std::io::Error::other("the name of its file is not Unicode"))?;
    webbrowser::open(name)
}

/// Whether a browser can be shown.
fn has_display() -> bool {
    let needs_one = cfg!(all(unix, not(target_os = "macos")));
    !needs_one || DISPLAYS.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}
