//! The programs that start servers.

/// Returns the name of a program without its folder and extension, in lower case.
pub(super) fn program_of(command: &str) -> String {
    let name = command.trim().rsplit(['/', '\\']).next().unwrap_or_default().to_ascii_lowercase();
    let name = [".exe", ".cmd", ".bat"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
    name.to_string()
}

/// Returns the program whose version determines what a launcher can start; none if the command is not a
/// launcher.
pub fn runtime_of(command: &str) -> Option<&'static str> {
    Some(match program_of(command).as_str() {
        "npx" | "pnpx" | "pnpm" | "yarn" | "tsx" | "node" => "node",
        "bunx" | "bun" => "bun",
        "deno" => "deno",
        "uvx" | "uv" => "uv",
        "pipx" => "pipx",
        "python" => "python",
        "python3" => "python3",
        "docker" => "docker",
        "podman" => "podman",
        "java" => "java",
        "dotnet" | "dnx" => "dotnet",
        "go" => "go",
        _ => return None,
    })
}

/// Whether a command starts servers of others.
pub(super) fn is_launcher(command: &str) -> bool {
    runtime_of(command).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_name() {
        let check = |command, expected| assert_eq!(runtime_of(command), expected, "{command}");
        check("npx", Some("node"));
        check("npx.cmd", Some("node"));
        check("/opt/homebrew/bin/uvx", Some("uv"));
        check(r"C:\Program Files\Docker\docker.EXE", Some("docker"));
        check("my-server", None);
    }
}
