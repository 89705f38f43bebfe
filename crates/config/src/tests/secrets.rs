//! Secrets: where they come from, and that nothing quotes them.

use super::*;

#[test]
fn a_secret_that_the_keyring_does_not_give_costs_its_own_entry() {
    let text = r#"
[servers.none]
url = "https://a.example"
headers = { A = "Bearer ${keyring:NONE}" }
[servers.shut]
command = "${keyring:SHUT}"
[servers.nowhere]
command = "x"
env = { A = "${keyring:NOWHERE}" }
[servers.good]
command = "x"
args = ["--token=${keyring:TOKEN}"]
[servers.off]
enabled = false
command = "${keyring:NONE}"
"#;
    let LoadedConfig { config, faults, .. } = loaded(text);
    let told: Vec<_> =
        faults.iter().map(|fault| format!("{}: {}. {}", fault.key, fault.message, fault.remedy)).collect();
    assert_snapshot!(told.join("\n"));
    let servers: Vec<_> = config.servers.keys().map(ServerName::as_str).collect();
    assert_eq!(servers, ["good", "off"]);
    let good = &config.servers[&ServerName::new("good").unwrap()];
    assert_eq!(good.secrets, [Secret::new("k3yr1ng")]);
    assert!(matches!(&good.transport, Transport::Stdio { args, .. } if args == &["--token=k3yr1ng"]));
}

#[test]
fn the_keyring_is_asked_for_what_is_needed_alone() {
    let asked = std::cell::RefCell::new(Vec::new());
    let keyring = |name: &str| {
        asked.borrow_mut().push(name.to_string());
        Ok("x".to_string())
    };
    let text = r#"
[servers.off]
enabled = false
command = "${keyring:OFF}"
[servers.off.env]
A = "${keyring:OFF}"
[servers.a]
command = "$${keyring:ESCAPED}"
args = ["${TOKEN:-${keyring:DEFAULT}}", "${NO:-${keyring:NEEDED}}"]
"#;
    let sources = ValueSources { env: &env, keyring: &keyring, ..ValueSources::NONE };
    assert_eq!(parse(text, Path::new(FILE), sources).unwrap().faults, []);
    assert_eq!(*asked.borrow(), ["NEEDED"]);
}

#[test]
fn secrets_are_never_quoted() {
    let text = r#"
[servers.a]
url = "${BAD_URL}"
headers = { A = "${BAD_TOKEN}", B = "s3cr3t\u0000" }
policy = "${TOKEN}"
timeout = "${TOKEN}"
start_timeout = "${keyring:TOKEN}"
[servers.b]
command = "x"
args = ["s3cr3t", 5]
env = { A = 5, "s=" = "s3cr3t" }
[profiles.p]
categories = ["${TOKEN}"]
[apps.x]
steps = [{ tool = "a.b", after = ["${TOKEN}"] }]
"#;
    let faults = faults(text);
    assert_eq!(faults.len(), 11, "{faults:#?}");
    let told = faults.join("\n");
    assert!(!told.contains("s3cr3t") && !told.contains("k3yr1ng"), "{faults:#?}");
}

#[test]
fn tokens_are_long_and_each_stands_in_one_place() {
    check(
        "[profiles.a]\ntokens = [\"${NO}\", \"${TOKEN}\", \"with a space in it\", 5]\n[profiles.b]\n",
        &[
            "2: profiles.a.tokens[0]: the environment variable `NO` is not set",
            "2: profiles.a.tokens[1]: this value must have at least 16 characters; generate one with `openssl rand -hex 32`",
            "2: profiles.a.tokens[2]: this value contains white space or non-ASCII characters",
            "2: profiles.a.tokens[3]: expected a string in quotes, found a number",
        ],
    );
    let twice = "[gateway]\ntokens = ['0123456789abcdef']\n[profiles.a]\ntokens = ['0123456789abcdef']\n";
    check(
        twice,
        &[
            "2: gateway.tokens[0]: is the same token as `profiles.a.tokens[0]`",
            "4: profiles.a.tokens[0]: is the same token as `gateway.tokens[0]`",
        ],
    );
    assert!(parse(twice, Path::new(FILE), here()).is_err(), "nobody can say whose token it is");
    check(
        "[gateway]\ntokens = ['${NO}']",
        &["2: gateway.tokens[0]: the environment variable `NO` is not set"],
    );
    assert!(parse("[gateway]\ntokens = ['${NO}']", Path::new(FILE), here()).is_err());
    let good =
        loaded("[gateway]\ntokens = ['0123456789abcdef']\n[profiles.a]\ntokens = ['fedcba9876543210']\n")
            .config;
    assert!(good.guarded && good.gateway.tokens == [BearerToken::new("0123456789abcdef")]);
    let shown = format!("{good:?}");
    assert!(shown.contains("tokens: [***]") && !shown.contains("0123456789abcdef"), "{shown}");
}

#[test]
fn a_file_that_asks_for_tokens_is_guarded_whatever_its_faults() {
    let guarded = |text: &str| loaded(text).config.guarded;
    for text in [
        "tokens = ['${NO}']",
        "tokens = ['short']",
        "tokens = '0123456789abcdef'",
        "token = ['0123456789abcdef']",
        "Tokens = ['0123456789abcdef']",
    ] {
        assert!(guarded(&format!("[profiles.a]\n{text}\n")), "{text}");
    }
    for text in ["", "tokens = []", "pinned = ['a.b']\ntool_injection = 'auto'"] {
        assert!(!guarded(&format!("[profiles.a]\n{text}\n")), "{text}");
    }
}

#[test]
fn variables_that_are_not_set_come_from_the_file_of_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let (file, secrets) = (folder.path().join("servers.toml"), folder.path().join(secrets_file::NAME));
    let text = r#"
[servers.a]
command = "~/a"
env = { KEPT = "${KEPT}", TOKEN = "${TOKEN}" }
args = ["$${KEPT}", "${NO:-${KEPT}}"]
[servers.b]
url = "https://b.example"
headers = { A = "${MISSING}" }
"#;
    std::fs::write(&file, text).unwrap();
    let mut kept = SecretsFile::read(&secrets).unwrap();
    for (name, value) in [("KEPT", "${TOKEN} kept"), ("TOKEN", "not this one"), ("HOME", "/nowhere")] {
        kept.set(name, value);
    }
    kept.write().unwrap();
    let loaded = load(&file, here()).unwrap();
    let told: Vec<_> = loaded.faults.iter().map(|fault| fault.message.as_str()).collect();
    assert_eq!(told, ["the environment variable `MISSING` is not set"]);
    assert_eq!(loaded.warnings, []);
    let a = &loaded.config.servers[&ServerName::new("a").unwrap()];
    let Transport::Stdio { command, args, env, .. } = &a.transport else { panic!() };
    assert_eq!(command, "/home/ann/a", "the file is for variables, and not for paths");
    assert_eq!((env["KEPT"].expose(), env["TOKEN"].expose()), ("${TOKEN} kept", "s3cr3t"));
    assert_eq!(args, &["${KEPT}", "${TOKEN} kept"]);
    assert_eq!(a.secrets, [Secret::new("${TOKEN} kept")], "it is hidden wherever it turns up");
}

#[test]
fn faults_of_the_file_of_secrets_name_it_and_cost_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (file, secrets) = (folder.path().join("servers.toml"), folder.path().join(secrets_file::NAME));
    std::fs::write(&file, "[servers.a]\ncommand = \"a\"\nenv = { A = \"${A}\" }\n").unwrap();
    std::fs::write(&secrets, "A=1\n\nsk-s3cr3t\n").unwrap();
    let close = |mode| {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&secrets, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    close(0o600);
    let loaded = load(&file, here()).unwrap();
    assert_eq!((loaded.config.servers.len(), loaded.faults.len(), loaded.warnings.len()), (1, 1, 0));
    let told = loaded.faults[0].to_string();
    let expected = "secrets.env:3:1: this line is not `NAME=value`. Write one NAME=value per line; comments start with `#`.";
    assert!(told.ends_with(expected), "{told}");
    close(0o640);
    let warnings = load(&file, here()).unwrap().warnings;
    assert_eq!(warnings.len(), usize::from(cfg!(unix)));
    assert!(warnings.iter().all(|warning| warning.remedy.contains("chmod 600")), "{warnings:?}");
    // An entirely unreadable file.
    std::fs::remove_file(&secrets).unwrap();
    std::fs::create_dir(&secrets).unwrap();
    let faults = load(&file, here()).unwrap().faults;
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults.iter().any(|fault| fault.message.contains("cannot read")), "{faults:?}");
    // If it may be the reason why servers.toml is unusable, it is among the faults.
    std::fs::write(&file, "[gateway]\nskills = [\"${A}\"]\n").unwrap();
    let unusable = load(&file, here()).unwrap_err().to_string();
    assert!(unusable.contains("cannot read"), "{unusable}");
}
