"""Packs one real program, and stand-ins for the systems that there is no program for, into a folder."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from targets import ROOT, TARGETS, inspect

REPOSITORY = "https://example.com/nonet/nonet"


def stand_in(triple: str) -> bytes:
    """Returns the head of a program for this system, which is enough to be packed and not to run."""
    cpu, _, kind = triple.partition("-")
    if "linux" in kind:
        interpreter = b"/lib/ld-linux.so.2\0GLIBC_2.35\0" if kind.endswith("gnu") else b""
        head = b"\x7fELF\x02\x01".ljust(16, b"\0")
        head += struct.pack("<HHIQQQIHHH", 3, 62 if cpu == "x86_64" else 183, 1, 0, 64, 0, 0, 64, 56, 1 if interpreter else 0)
        head = head.ljust(64, b"\0")
        return head + struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(interpreter), len(interpreter), 1) + interpreter
    if "apple" in kind:
        macos, machine = ((10, 12), 0x01000007) if cpu == "x86_64" else ((11, 0), 0x0100000C)
        command = struct.pack("<IIIIII", 0x32, 24, 1, macos[0] << 16 | macos[1] << 8, 0, 0)
        return struct.pack("<IIIIIIII", 0xFEEDFACF, machine, 0, 2, 1, len(command), 0, 0) + command
    return b"MZ".ljust(60, b"\0") + struct.pack("<I", 64) + b"PE\0\0" + struct.pack("<H", 0x8664)


def stripped(binary: Path, into: Path) -> Path:
    """Copies a program, and takes the debug information out of the copy."""
    copy = into / "nonet"
    shutil.copyfile(binary, copy)
    copy.chmod(0o755)
    # On macOS that would break the program's signature.
    if sys.platform == "linux" and (strip := shutil.which("strip")):
        subprocess.run([strip, copy], check=True)
    return copy


def pack(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    command = [sys.executable, str(ROOT / "packaging/pack"), *map(str, arguments)]
    return subprocess.run(command, env=environment, text=True, capture_output=True)


def must_pack(*arguments: object) -> None:
    done = pack(*arguments)
    if done.returncode != 0:
        raise SystemExit(f"packaging/pack {' '.join(map(str, arguments))}: {done.stderr.strip()}")


def pack_all(binary: Path, out: Path, level: int) -> str:
    """Packs this program, six stand-ins and what belongs to all; returns the target of the program."""
    real = inspect(binary.read_bytes()).triple
    options = ["--out", out, "--repository", REPOSITORY]
    for triple in TARGETS:
        file = binary
        if triple != real:
            file = out / "stand-ins" / triple
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(stand_in(triple))
        must_pack("program", file, triple, "--level", level, *options)
    must_pack("release", *options)
    return real
