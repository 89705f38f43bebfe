# `packaging/pack release` fills in the version, the address of the releases and the checksums.
class Nonet < Formula
  desc "One MCP server in front of all of your MCP servers"
  homepage "@REPOSITORY@"
  version "@VERSION@"
  license all_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
      url "@REPOSITORY@/releases/download/v@VERSION@/nonet-v@VERSION@-aarch64-apple-darwin.tar.gz"
      sha256 "@aarch64-apple-darwin@"
    end
    on_intel do
      url "@REPOSITORY@/releases/download/v@VERSION@/nonet-v@VERSION@-x86_64-apple-darwin.tar.gz"
      sha256 "@x86_64-apple-darwin@"
    end
  end

  on_linux do
    on_arm do
      url "@REPOSITORY@/releases/download/v@VERSION@/nonet-v@VERSION@-aarch64-unknown-linux-gnu.tar.gz"
      sha256 "@aarch64-unknown-linux-gnu@"
    end
    on_intel do
      url "@REPOSITORY@/releases/download/v@VERSION@/nonet-v@VERSION@-x86_64-unknown-linux-gnu.tar.gz"
      sha256 "@x86_64-unknown-linux-gnu@"
    end
  end

  def install
    bin.install "nonet"
    pkgshare.install "servers.toml", "examples"
    generate_completions_from_executable(bin/"nonet", "completions", shells: [:bash, :zsh, :fish])
    (man1/"nonet.1").write Utils.safe_popen_read(bin/"nonet", "man")
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/nonet --version")
  end
end
