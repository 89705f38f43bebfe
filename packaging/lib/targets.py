"""The systems that Nonet is packed for, and what a program's own bytes say about the system it runs on."""

import re
import struct
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Target:
    """One system, as Rust, npm, MCPB and OCI name it."""

    triple: str
    npm: str
    """The package is `@nonet/` and this."""
    os: str
    """npm's `os`, which is also the platform in an MCPB manifest."""
    cpu: str
    libc: str | None
    machine: str
    """The processor in a wheel's tag."""
    image: str | None = None
    """The architecture of the OCI image that holds this program."""

    @property
    def program(self) -> str:
        return "nonet.exe" if self.os == "win32" else "nonet"

    @property
    def archive(self) -> str:
        return ".zip" if self.os == "win32" else ".tar.gz"


TARGETS = {
    target.triple: target
    for target in [
        Target("x86_64-unknown-linux-gnu", "linux-x64-gnu", "linux", "x64", "glibc", "x86_64", "amd64"),
        Target("aarch64-unknown-linux-gnu", "linux-arm64-gnu", "linux", "arm64", "glibc", "aarch64", "arm64"),
        Target("x86_64-unknown-linux-musl", "linux-x64-musl", "linux", "x64", "musl", "x86_64"),
        Target("aarch64-unknown-linux-musl", "linux-arm64-musl", "linux", "arm64", "musl", "aarch64"),
        Target("x86_64-apple-darwin", "darwin-x64", "darwin", "x64", None, "x86_64"),
        Target("aarch64-apple-darwin", "darwin-arm64", "darwin", "arm64", None, "arm64"),
        Target("x86_64-pc-windows-msvc", "win32-x64", "win32", "x64", None, "amd64"),
    ]
}


@dataclass(frozen=True)
class Program:
    """What the bytes of a program say."""

    triple: str
    glibc: tuple[int, int] | None = None
    """The oldest glibc that has every symbol version the program asks for."""
    macos: tuple[int, int] | None = None
    """The oldest macOS that the program was linked for."""


class NotAProgram(Exception):
    """The bytes are not a program for one of `TARGETS`."""


def inspect(data: bytes) -> Program:
    """Returns the system that a program is for."""
    if data[:6] == b"\x7fELF\x02\x01":
        return _elf(data)
    if data[:4] == b"\xcf\xfa\xed\xfe":
        return _mach_o(data)
    if data[:2] == b"MZ":
        return _pe(data)
    raise NotAProgram("not a program of 64-bit Linux, macOS or Windows")


def _elf(data: bytes) -> Program:
    machine = struct.unpack_from("<H", data, 18)[0]
    cpu = {62: "x86_64", 183: "aarch64"}.get(machine)
    if cpu is None:
        raise NotAProgram(f"an ELF program for machine {machine}, neither x86-64 nor arm64")
    offset = struct.unpack_from("<Q", data, 32)[0]
    size, count = struct.unpack_from("<HH", data, 54)
    interpreter = b""
    for header in range(offset, offset + size * count, size):
        if struct.unpack_from("<I", data, header)[0] == 3:  # PT_INTERP
            begin, length = struct.unpack_from("<Q", data, header + 8)[0], struct.unpack_from("<Q", data, header + 32)[0]
            interpreter = data[begin : begin + length]
    if b"ld-linux" not in interpreter:
        return Program(f"{cpu}-unknown-linux-musl")
    versions = {(int(major), int(minor)) for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", data)}
    return Program(f"{cpu}-unknown-linux-gnu", glibc=max(versions, default=(2, 17)))


def _mach_o(data: bytes) -> Program:
    cpu = {0x01000007: "x86_64", 0x0100000C: "aarch64"}.get(struct.unpack_from("<I", data, 4)[0])
    if cpu is None:
        raise NotAProgram("a Mach-O program that is neither for x86-64 nor for arm64")
    macos = (11, 0) if cpu == "aarch64" else (10, 12)
    at = 32
    for _ in range(struct.unpack_from("<I", data, 16)[0]):
        command, size = struct.unpack_from("<II", data, at)
        if command in (0x32, 0x24):  # LC_BUILD_VERSION, LC_VERSION_MIN_MACOSX
            version = struct.unpack_from("<I", data, at + (12 if command == 0x32 else 8))[0]
            macos = (version >> 16, version >> 8 & 0xFF)
        at += size
    return Program(f"{cpu}-apple-darwin", macos=macos)


def _pe(data: bytes) -> Program:
    header = struct.unpack_from("<I", data, 60)[0]
    if data[header : header + 4] != b"PE\0\0" or struct.unpack_from("<H", data, header + 4)[0] != 0x8664:
        raise NotAProgram("a Windows program that is not for x86-64")
    return Program("x86_64-pc-windows-msvc")


def wheel_tags(target: Target, program: Program) -> list[str]:
    """Returns the platform tags of the wheel with this program."""
    if target.libc == "glibc":
        major, minor = program.glibc or (2, 17)
        return [f"manylinux_{major}_{minor}_{target.machine}"]
    if target.libc == "musl":
        # A static program also runs with an older glibc than the other wheel needs.
        return [f"manylinux_2_17_{target.machine}", f"musllinux_1_1_{target.machine}"]
    if target.os == "darwin":
        major, minor = program.macos or (11, 0)
        return [f"macosx_{major}_{minor if major < 11 else 0}_{target.machine}"]
    return [f"win_{target.machine}"]


def cargo_version() -> str:
    """Returns the version in Cargo.toml."""
    return re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)


def python_version(version: str) -> str:
    """Returns a version of Cargo as Python writes it: 1.2.0-rc.1 is 1.2.0rc1."""
    found = re.fullmatch(r"(\d+\.\d+\.\d+)(?:-(alpha|beta|rc)\.?(\d+))?", version)
    if not found:
        raise SystemExit(f"version `{version}` has no form in Python: write 1.2.3, or 1.2.3-alpha.1, -beta.1, -rc.1")
    release, kind, number = found.groups()
    return release + ({"alpha": "a", "beta": "b", "rc": "rc"}[kind] + number if kind else "")
