//! The README's recording: its script runs, and the committed file has the expected form.

use std::{fs, path::Path, process::Command};

use super::{NONET, installed};

/// Checks that GitHub shows the drawing and everybody can load it.
fn check(svg: &str) {
    assert!(svg.len() < 60_000, "{} bytes", svg.len());
    for part in [
        "<svg ",
        "prefers-color-scheme:dark",
        "@keyframes",
        "time.get_current_time",
        "`timzone` was taken as `timezone`",
    ] {
        assert!(svg.contains(part), "{part}");
    }
    for part in ["<script", "@import", "url(http", "<image", "href", "@font-face"] {
        assert!(!svg.contains(part), "{part}");
    }
}

#[test]
fn the_recording_can_be_made_again() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/record.py");
    check(&fs::read_to_string(script.with_file_name("recording.svg")).unwrap());
    let Some(real) = installed() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("recording.svg");
    let mut record = Command::new("python3");
    record.arg(&script).args(["--nonet", NONET]).arg("--out").arg(&out);
    for programs in ["node/node_modules/.bin", "venv/bin"] {
        record.arg("--programs").arg(real.join(programs));
    }
    let done = record.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    check(&fs::read_to_string(&out).unwrap());
}
