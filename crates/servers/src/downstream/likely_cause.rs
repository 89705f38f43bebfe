//! The likely cause of a server's failure, derived from the error text.

/// Phrases of an error text, in lower case, each with the likely cause. The first match counts.
const CAUSES: &[(&[&str], &str)] = &[
    (
        &[
            "err_module_not_found",
            "cannot find module",
            "unsupported engine",
            "unexpected token '?'",
            "fs.globsync",
        ],
        "The server needs another version of Node.js, or its package is incomplete: check `node --version`, and run the command by hand.",
    ),
    (
        &[
            "npm err! 404",
            "npm error 404",
            "code e404",
            "no matching distribution",
            "not found in the package registry",
        ],
        "There is no package with this name: check `args`.",
    ),
    (
        &["enotfound", "eai_again", "getaddrinfo", "dns error", "name resolution", "could not resolve"],
        "A host name could not be resolved: check the network and the address.",
    ),
    (
        &["eaddrinuse", "address already in use"],
        "A port that the server needs is in use: is another copy of it running?",
    ),
    (
        &["econnrefused", "connection refused"],
        "Nothing listens at that address: is the other side running, and is the port correct?",
    ),
    (
        &["certificate", "self-signed", "tls handshake", "unknownissuer"],
        "The other side's certificate is not trusted: add its authority to this system's; a Node.js server \
         reads the authority's file from `NODE_EXTRA_CA_CERTS` in `env`.",
    ),
    (
        &[
            "unauthorized",
            "invalid token",
            "invalid api key",
            "bad credentials",
            "token expired",
            "http 401",
            "status 401",
            "status code 401",
        ],
        "The token is missing or no longer valid: check `env` or `headers`.",
    ),
    (
        &["environment variable", "is not set", "keyerror", "must be set", "missing required"],
        "A variable or argument that the server needs is missing: check `env` and `args`.",
    ),
    (
        &["permission denied", "eacces", "eperm", "operation not permitted"],
        "The server is not allowed to read, write or run something: check who owns the files in `args` and \
         `cwd`, and whether `command` is executable.",
    ),
    (
        &["no such file or directory", "enoent"],
        "A file or folder that the server needs does not exist: check `args`, `cwd` and `openapi`.",
    ),
    (&["modulenotfounderror", "importerror"], "A Python package is missing or has the wrong version."),
    (
        &["no answer within"],
        "It may only be slow to start, as with a first download: raise `start_timeout`, or run the command by hand.",
    ),
    (
        &["out of memory", "heap limit"],
        "It ran out of memory: close other programs, or give a Node.js server more with `NODE_OPTIONS = \
         \"--max-old-space-size=4096\"` in `env`.",
    ),
    (
        &["signal: 9"],
        "It was killed, perhaps for lack of memory: close other programs, and check this system's log.",
    ),
];

/// Returns the likely cause of a failure as a sentence, if one is known.
pub fn likely_cause(error: &str) -> Option<&'static str> {
    let error = error.to_lowercase();
    CAUSES.iter().find(|(words, _)| words.iter().any(|word| error.contains(word))).map(|(_, cause)| *cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_failures_have_a_likely_cause() {
        let check = |error: &str, part: &str| {
            let cause = likely_cause(error).unwrap_or_default();
            assert!(cause.contains(part), "{error}: {cause}");
        };
        check("exit code 1; its stderr ends with: npm ERR! 404 Not Found - GET /no-such", "no package");
        check("Error: listen EADDRINUSE: address already in use :::3000", "port");
        check("http://localhost:1: tcp connect error: Connection refused (os error 111)", "Nothing listens");
        check("KeyError: 'WEATHER_API_KEY'", "variable");
        check("Error: GITHUB_TOKEN environment variable is not set", "variable");
        check("HTTP status client error (401 Unauthorized)", "token");
        check("no answer within 60s", "start_timeout");
        check("it ended (signal: 9 (SIGKILL))", "perhaps");
        check("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'x'", "Node.js");
        check("https://h: invalid peer certificate: UnknownIssuer", "NODE_EXTRA_CA_CERTS");
        check("Error: EACCES: permission denied, open '/etc/x'", "`cwd`");
        check("FATAL ERROR: Reached heap limit Allocation failed", "max-old-space-size");
        check("AxiosError: Request failed with status code 401", "token");
    }

    #[test]
    fn what_only_looks_like_a_known_failure_has_no_likely_cause() {
        for error in [
            "it closed the connection",
            "it ended (exit code 1); its stderr ends with: listening on port 14017",
            "session 4f2c401a was closed",
            "an answer of 401 bytes is no JSON",
            "Node.js 20 or later is required",
            "a restart is required",
            "request 9e404b7 was dropped",
            // The text already says what to do.
            "no handshake within 4s; if it is only slow to start, raise `start_timeout` in [servers.shop]",
        ] {
            assert_eq!(likely_cause(error), None, "{error}");
        }
    }
}
