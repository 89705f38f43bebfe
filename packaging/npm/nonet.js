#!/usr/bin/env node
// Starts Nonet's program for this system. The program is in one of the packages @nonet/*; npm installs only the matching
// one. Standard streams, signals and the exit code pass through.
"use strict";

const { spawn } = require("node:child_process");
const { constants } = require("node:os");
const path = require("node:path");
const { version, optionalDependencies } = require("./package.json");

const system = `${process.platform}-${process.arch}`;

/** The version of glibc here, or nothing where the C library is another one. Slow, so only for when something is wrong. */
function glibc() {
  const { report } = process;
  if (process.platform !== "linux" || !report) return undefined;
  report.excludeNetwork = true;
  const found = report.getReport();
  return (typeof found === "string" ? JSON.parse(found) : found).header.glibcVersionRuntime;
}

function isOlder(version, wanted) {
  const [a, b] = [version, wanted].map((it) => it.split(".").map(Number));
  return a[0] !== b[0] ? a[0] < b[0] : a[1] < b[1];
}

/** The installed packages for this system. An npm that does not know `libc` installs two of them. */
function installed() {
  const names = process.platform === "linux" ? [`${system}-gnu`, `${system}-musl`] : [system];
  return names.flatMap((name) => {
    try {
      const manifest = require.resolve(`@nonet/${name}/package.json`);
      const program = process.platform === "win32" ? "nonet.exe" : "nonet";
      return [{ name, glibc: require(manifest).glibc, file: path.join(path.dirname(manifest), "bin", program) }];
    } catch {
      return [];
    }
  });
}

function fitting() {
  const found = installed();
  if (found.length < 2) return found[0];
  const here = glibc();
  return here && !isOlder(here, found[0].glibc) ? found[0] : found[1];
}

function fail(...lines) {
  console.error(`nonet: ${lines.join("\n  ")}`);
  process.exit(1);
}

function noProgram() {
  const exist = Object.keys(optionalDependencies).map((name) => name.replace("@nonet/", ""));
  const here = process.platform === "linux" ? `${system}-${glibc() ? "gnu" : "musl"}` : system;
  if (!exist.includes(here)) {
    fail(
      `there is no package with a program for ${here}. There are packages for ${exist.join(", ")}.`,
      "Build Nonet with Rust instead: `cargo install --path . --locked` in its repository.",
    );
  }
  fail(
    `the package @nonet/${here}, which holds the program for this system, is not installed.`,
    "npm leaves it out with --omit=optional or --no-optional, and when node_modules comes from another system.",
    `Install again without these options, or run \`npm install @nonet/${here}@${version}\`.`,
  );
}

const program = fitting() ?? noProgram();
const child = spawn(program.file, process.argv.slice(2), { stdio: "inherit" });

// On Windows, the console signals every process by itself.
for (const signal of process.platform === "win32" ? ["SIGINT"] : ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"]) {
  process.on(signal, () => process.platform !== "win32" && child.kill(signal));
}

child.on("error", (error) => {
  // ENOENT for an existing file: the program's loader is missing.
  fail(`${program.file} does not start: ${error.message}.`, `It is the program for ${program.name}; this is ${system}, glibc ${glibc() ?? "none"}.`);
});

child.on("exit", (code, signal) => {
  if (signal) {
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
    // In case the signal does not end this process.
    setTimeout(() => process.exit(128 + (constants.signals[signal] ?? 0)), 100);
    return;
  }
  if (code === 1 && program.glibc) {
    const here = glibc();
    if (here && isOlder(here, program.glibc)) {
      fail(
        `this program needs glibc ${program.glibc} or later, and this system has ${here}.`,
        `Add the static program, which is used instead: \`npm install --force @nonet/${system}-musl@${version}\`.`,
      );
    }
  }
  process.exit(code);
});
