use std::os::unix::fs::symlink;

use super::*;

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        for folder in
            [".ssh", "files/app/node_modules/.bin", "files/app/build", "files/data", "state", ".pyenv/shims"]
        {
            fs::create_dir_all(home.path(folder)).unwrap();
        }
        for file in ["files/app/package.json", "files/app/build/index.js", "files/notes.db", "key.json"] {
            fs::write(home.path(file), "{}").unwrap();
        }
        fs::write(home.path("servers.toml"), "").unwrap();
        home
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.0.path().join(inside)
    }

    fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            server: "s".into(),
            required: true,
            home: Some(self.0.path().into()),
            hidden: vec![self.path("state"), self.path("servers.toml")],
            ..SandboxSpec::default()
        }
    }

    /// Returns the places of a command whose words may contain `~`, with the home folder shown as `~`.
    fn places(&self, spec: &SandboxSpec, command: &[&str]) -> Result<Places, SetUpFault> {
        let home = self.0.path().to_string_lossy();
        let command: Vec<OsString> = command.iter().map(|word| word.replace('~', &home).into()).collect();
        let variables =
            [("PATH".into(), "/usr/bin".into()), ("KEY_FILE".into(), self.path("key.json").into())];
        Places::of(spec, &command, &variables.into())
    }

    fn shown(&self, paths: &BTreeSet<PathBuf>) -> Vec<String> {
        let inside = paths.iter().filter_map(|path| path.strip_prefix(self.0.path()).ok());
        inside.map(|path| format!("~/{}", path.display())).collect()
    }
}

#[test]
fn a_command_opens_what_it_names_and_no_more() {
    let home = Home::new();
    let check = |command: &[&str], write: &[&str], too_broad: &[&str]| {
        let places = home.places(&home.spec(), command).unwrap();
        assert_eq!(home.shown(&places.write), write, "{command:?}");
        assert_eq!(home.shown(&places.too_broad), too_broad, "{command:?}");
        assert_eq!(home.shown(&places.read), ["~/key.json"], "{command:?}");
    };
    check(&["/usr/bin/env", "~/files/data"], &["~/files/data"], &[]);
    check(
        &["/usr/bin/env", "--folder=~/files/data", "~/files/notes.db"],
        &["~/files/data", "~/files/notes.db"],
        &[],
    );
    check(&["/usr/bin/env", "~/files", "~/files/data"], &["~/files"], &[]);
    // The home folder, hidden folders, and missing paths are excluded.
    check(&["/usr/bin/env", "~"], &[], &["~/"]);
    check(&["/usr/bin/env", "~/files/.."], &[], &["~/files/.."]);
    check(&["/usr/bin/env", "~/.ssh", "~/state"], &[], &["~/.ssh", "~/state"]);
    check(&["/usr/bin/env", "~/none", "files"], &[], &[]);
    symlink(home.path(".ssh"), home.path("files/data/link")).unwrap();
    check(&["/usr/bin/env", "~/files/data/link"], &[], &["~/files/data/link"]);
    // A script is a program, shown with its project.
    let places = home.places(&home.spec(), &["/usr/bin/env", "~/files/app/build/index.js"]).unwrap();
    assert_eq!(home.shown(&places.system), ["~/.pyenv", "~/files/app"]);
    assert!(places.write.is_empty());
}

#[test]
fn paths_of_the_configuration_exist_and_are_not_too_broad() {
    let home = Home::new();
    let refused = |read: &[&str], write: &[&str]| {
        let paths = |all: &[&str]| all.iter().map(|path| home.path(path)).collect();
        let spec = SandboxSpec { read: paths(read), write: Some(paths(write)), ..home.spec() };
        home.places(&spec, &["/usr/bin/env"]).map(drop).map_err(|fault| fault.to_string())
    };
    assert_eq!(refused(&["files", ".ssh"], &["files/data"]), Ok(()));
    assert!(refused(&["none"], &[]).unwrap_err().contains("does not exist"));
    assert!(refused(&[], &["none"]).unwrap_err().contains("does not exist"));
    assert!(refused(&[], &[""]).unwrap_err().contains("the whole machine"));
    assert!(refused(&[], &["/etc"]).unwrap_err().contains("the whole machine"));
    // A path named explicitly is not hidden; Nonet's own paths always are.
    let spec =
        SandboxSpec { read: vec![home.path("."), home.path(".ssh"), home.path("state")], ..home.spec() };
    let hidden = home.places(&spec, &["/usr/bin/env"]).unwrap().hidden;
    assert!(!hidden.contains(&home.path(".ssh")) && hidden.contains(&home.path(".aws")));
    assert!(hidden.contains(&home.path("state")) && hidden.contains(&home.path("servers.toml")));
}
