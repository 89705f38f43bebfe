//! Skills over MCP (the extension `io.modelcontextprotocol/skills`, SEP-2640): the entries of skills that Nonet serves,
//! their files, and the check of what a server gives for an entry of its own.

use std::{
    fs,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use nonet_base::{
    files,
    text::{hex, line},
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{SKILL, Skill, limits, split};

/// The extension.
pub const EXTENSION: &str = "io.modelcontextprotocol/skills";
/// Where the skills of the folders are.
const ROOT: &str = "skill://nonet/";
/// The most files of a skill, and their bytes together (the extension's limits).
const MOST_FILES: usize = 512;
const MOST_BYTES: usize = 16 << 20;
/// How deep folders are read.
const MAX_DEPTH: usize = 16;
/// The MIME type of folders.
const FOLDER: &str = "inode/directory";

/// A skill as clients get it by the extension.
#[derive(Clone, Debug)]
pub struct ServedSkill {
    /// Its name.
    pub name: String,
    /// Its entry in `skills/list`.
    pub entry: Value,
    folder: PathBuf,
    /// The paths of its files below its folder.
    files: Vec<String>,
}

/// Whether a name follows the rules of Agent Skills: letters a to z, digits, and single `-` between them, 64 at most.
fn is_name(name: &str) -> bool {
    let is_part =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= 64 && name.split('-').all(is_part)
}

/// Returns the skills that the extension can serve, with the digests of all files. The others have no proper name or no
/// description in their front matter, or too many files. Blocks.
pub fn served(skills: &[Skill]) -> Vec<ServedSkill> {
    let of = |skill: &Skill| match ServedSkill::of(skill) {
        Ok(served) => Some(served),
        Err(why) => {
            tracing::debug!(skill = skill.name, why, "not served by the skills extension");
            None
        }
    };
    skills.iter().filter_map(of).collect()
}

impl ServedSkill {
    fn of(skill: &Skill) -> Result<Self, &'static str> {
        let bytes = files::read_at_most(&skill.folder.join(SKILL), MOST_BYTES)
            .map_err(|_| "SKILL.md cannot be read")?;
        let text = String::from_utf8(bytes).map_err(|_| "SKILL.md is not UTF-8")?;
        let front = front_of(&text).ok_or("it has no front matter")?;
        let has = |key: &str| front.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
        let name = has("name").filter(|name| is_name(name)).ok_or("its name is not one of Agent Skills")?;
        has("description").ok_or("it has no description")?;
        let (name, root) = (name.to_owned(), format!("{ROOT}{name}"));
        let folder = skill.folder.canonicalize().map_err(|_| "its folder is gone")?;
        let (mut resources, mut names, mut left) = (Vec::new(), Vec::new(), MOST_BYTES);
        for path in walk(&folder)? {
            let bytes =
                files::read_at_most(&folder.join(&path), left).map_err(|_| "its files are too large")?;
            left -= bytes.len();
            resources.push(
                json!({ "uri": format!("{root}/{path}"), "digest": digest(&bytes), "size": bytes.len() }),
            );
            names.push(path);
        }
        let entry = json!({ "uri": format!("{root}/{SKILL}"), "frontmatter": front, "resources": resources });
        Ok(Self { name, entry, folder, files: names })
    }

    fn root(&self) -> String {
        format!("{ROOT}{}", self.name)
    }

    /// Returns the contents of a file by its URI, as `resources/read` has it; none if the URI is not one of its files.
    /// Blocks.
    pub fn file(&self, uri: &str) -> Option<Value> {
        let path = uri.strip_prefix(&self.root())?.strip_prefix('/')?;
        let path = self.files.iter().find(|known| *known == path)?;
        let bytes = files::read_at_most(&self.folder.join(path), MOST_BYTES).ok()?;
        let mime = mime_of(path);
        Some(match String::from_utf8(bytes) {
            Ok(text) => json!({ "uri": uri, "mimeType": mime, "text": text }),
            Err(error) => {
                json!({ "uri": uri, "mimeType": mime, "blob": STANDARD.encode(error.into_bytes()) })
            }
        })
    }

    /// Returns the files and folders directly in one of its folders; none if the URI is none of them.
    pub fn directory(&self, uri: &str) -> Option<Vec<Value>> {
        let inside = uri.strip_prefix(&self.root())?;
        let prefix = match inside.strip_prefix('/') {
            Some(path) if !path.is_empty() && !path.ends_with('/') => format!("{path}/"),
            None if inside.is_empty() => String::new(),
            _ => return None,
        };
        let mut found: Vec<Value> = Vec::new();
        let mut is_folder = prefix.is_empty();
        for rest in self.files.iter().filter_map(|path| path.strip_prefix(&prefix)) {
            is_folder = true;
            let (name, mime) = match rest.split_once('/') {
                Some((folder, _)) => (folder, FOLDER),
                None => (rest, mime_of(rest)),
            };
            let uri = format!("{}/{prefix}{name}", self.root());
            if !found.iter().any(|known| known["uri"] == uri) {
                found.push(json!({ "uri": uri, "name": name, "mimeType": mime }));
            }
        }
        is_folder.then_some(found)
    }

    /// Returns its `SKILL.md` as `resources/list` has it.
    pub fn resource(&self) -> Value {
        let front = &self.entry["frontmatter"];
        json!({
            "uri": self.entry["uri"],
            "name": self.name,
            "description": front["description"],
            "mimeType": mime_of(SKILL),
        })
    }
}

/// Whether a URI is one of a folder's skill.
pub fn is_own(uri: &str) -> bool {
    uri.starts_with(ROOT)
}

/// Returns the files of a folder as sorted relative paths. Links are left out.
fn walk(folder: &Path) -> Result<Vec<String>, &'static str> {
    let (mut files, mut open) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(folder.join(&at)).map_err(|_| "a folder cannot be read")?.flatten() {
            let path = at.join(entry.file_name());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && path.components().count() <= MAX_DEPTH => open.push(path),
                Ok(kind) if kind.is_dir() => return Err("its folders are too deep"),
                Ok(kind) if kind.is_file() => files.push(path.to_string_lossy().replace('\\', "/")),
                _ => {}
            }
            if files.len() > MOST_FILES || open.len() > MOST_FILES {
                return Err("it has too many files");
            }
        }
    }
    files.sort();
    Ok(files)
}

fn mime_of(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, end)| end) {
        Some("md") => "text/markdown",
        Some("json") => "application/json",
        Some("yaml" | "yml") => "application/yaml",
        Some("html") => "text/html",
        Some("png") => "image/png",
        Some("txt" | "py" | "sh" | "js" | "ts" | "toml") => "text/plain",
        _ => "application/octet-stream",
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

/// Returns the front matter of a text, with every key.
fn front_of(text: &str) -> Option<Map<String, Value>> {
    let front = split(text).0?;
    serde_saphyr::from_str_with_options(front, limits()).ok()
}

/// A skill that a server offers by the extension.
#[derive(Clone, Copy, Debug)]
pub struct OfferedSkill<'a> {
    entry: &'a Value,
    /// The URI of its `SKILL.md`.
    pub uri: &'a str,
    /// Its name.
    pub name: &'a str,
    /// When to use it.
    pub description: &'a str,
}

impl<'a> OfferedSkill<'a> {
    /// Reads an entry; none if it has not what every entry must have.
    pub fn of(entry: &'a Value) -> Option<Self> {
        let uri = entry.get("uri")?.as_str()?;
        let front = entry.get("frontmatter")?;
        let text = |key: &str| front.get(key).and_then(Value::as_str);
        let name = text("name").filter(|name| is_name(name))?;
        let is_named = uri.strip_suffix(SKILL)?.strip_suffix('/')?.rsplit('/').next() == Some(name);
        let has_files = match entry.get("resources")? {
            Value::Array(all) => all.len() <= MOST_FILES,
            Value::String(word) => word == "dynamic",
            _ => false,
        };
        let description = text("description").filter(|text| !text.is_empty())?;
        (is_named && has_files).then_some(Self { entry, uri, name, description })
    }

    /// Returns the paths of its files beside `SKILL.md`.
    pub fn files(&self) -> Vec<&'a str> {
        let root = self.uri.strip_suffix(SKILL).unwrap_or_default();
        let listed = self.entry.get("resources").and_then(Value::as_array).into_iter().flatten();
        let paths = listed.filter_map(|one| one.get("uri")?.as_str()?.strip_prefix(root));
        paths.filter(|path| *path != SKILL).collect()
    }

    /// Returns the URI of a file that the entry lists; of a `dynamic` skill, of any file inside.
    pub fn uri_of(&self, file: &str) -> Option<String> {
        let uri = format!("{}{file}", self.uri.strip_suffix(SKILL)?);
        let is_plain = !file.is_empty() && file.split('/').all(|part| !matches!(part, "" | "." | ".."));
        (is_plain && self.listed(&uri).is_some_and(|_| true)).then_some(uri)
    }

    /// Returns what the entry says of a file: its size and digest, or nothing of a `dynamic` skill.
    fn listed(&self, uri: &str) -> Option<Option<(u64, &'a str)>> {
        let Some(Value::Array(all)) = self.entry.get("resources") else { return Some(None) };
        let one = all.iter().find(|one| one.get("uri").and_then(Value::as_str) == Some(uri))?;
        Some(Some((one.get("size")?.as_u64()?, one.get("digest")?.as_str()?)))
    }

    /// Checks a file that the server gave against the entry, and returns its text without front matter. Fails with the
    /// reason not to use it.
    pub fn checked(&self, uri: &str, result: &Value) -> Result<String, String> {
        let contents = result.get("contents").and_then(Value::as_array).into_iter().flatten();
        let mut contents = contents.filter(|one| one.get("uri").and_then(Value::as_str) == Some(uri));
        let (Some(content), None) = (contents.next(), contents.next()) else {
            return Err("the server gave another file, or several".into());
        };
        let bytes = match (content.get("text"), content.get("blob")) {
            (Some(Value::String(text)), _) => text.as_bytes().to_vec(),
            (None, Some(Value::String(blob))) => STANDARD.decode(blob).map_err(|_| "it cannot be decoded")?,
            _ => return Err("it has no content".into()),
        };
        match self.listed(uri) {
            None => return Err("the entry does not list it".into()),
            Some(Some((size, _))) if size != bytes.len() as u64 => {
                return Err(format!("it has {} bytes, and the server announced {size}", bytes.len()));
            }
            Some(Some((_, announced))) if announced != digest(&bytes) => {
                return Err("its SHA-256 is not the one that the server announced".into());
            }
            Some(_) => {}
        }
        let text = String::from_utf8(bytes).map_err(|_| "it is not text")?;
        if uri != self.uri {
            return Ok(text);
        }
        let front = front_of(&text).ok_or("its front matter cannot be read")?;
        match self.entry.get("frontmatter").and_then(Value::as_object) {
            Some(announced) if *announced == front => Ok(split(&text).1.to_owned()),
            announced => {
                let differs = |key: &&String| announced.and_then(|all| all.get(*key)) != front.get(*key);
                let keys = front.keys().chain(announced.into_iter().flat_map(Map::keys));
                let key = keys.into_iter().find(differs).map_or("front matter", |key| key.as_str());
                Err(format!("its `{}` is not the one that the server announced", line(key, 40)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, bytes: &[u8]| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            fs::write(path, bytes).expect("it can be written");
        };
        write(
            "pdf/SKILL.md",
            b"---\nname: pdf\ndescription: Fills forms\nlicense: MIT\nyes: yes\n---\nDo it.\n",
        );
        write("pdf/parts/form.md", b"a form");
        write("pdf/parts/deep/pixel.png", &[0xff, 0xd8]);
        write("Bad Name/SKILL.md", b"---\nname: Bad Name\ndescription: x\n---\n");
        write("bare/SKILL.md", b"Do it.");
        root
    }

    #[test]
    fn a_skill_is_served_with_the_digests_of_all_its_files() {
        let root = folder();
        let served = served(&super::super::load(&[root.path().to_path_buf()]).skills);
        let [pdf] = &served[..] else { panic!("{served:?}") };
        let front = json!({ "name": "pdf", "description": "Fills forms", "license": "MIT", "yes": "yes" });
        assert_eq!(
            (&pdf.entry["uri"], &pdf.entry["frontmatter"]),
            (&json!("skill://nonet/pdf/SKILL.md"), &front)
        );
        let files: Vec<&str> = pdf.entry["resources"]
            .as_array()
            .expect("files")
            .iter()
            .filter_map(|one| one["uri"].as_str())
            .collect();
        assert_eq!(
            files,
            [
                "skill://nonet/pdf/SKILL.md",
                "skill://nonet/pdf/parts/deep/pixel.png",
                "skill://nonet/pdf/parts/form.md"
            ]
        );
        assert_eq!(pdf.entry["resources"][2]["size"], 6);
        assert_eq!(pdf.entry["resources"][2]["digest"], digest(b"a form"));
        assert_eq!(pdf.file("skill://nonet/pdf/parts/form.md").expect("a file")["text"], "a form");
        assert_eq!(pdf.file("skill://nonet/pdf/parts/deep/pixel.png").expect("a file")["blob"], "/9g=");
        assert_eq!(pdf.file("skill://nonet/pdf/../bare/SKILL.md"), None);
        let names = |uri: &str| {
            let found = pdf.directory(uri)?;
            Some(
                found
                    .iter()
                    .map(|one| format!("{} {}", one["name"], one["mimeType"]).replace('"', ""))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(
            names("skill://nonet/pdf").expect("a folder"),
            ["SKILL.md text/markdown", "parts inode/directory"]
        );
        assert_eq!(
            names("skill://nonet/pdf/parts").expect("a folder"),
            ["deep inode/directory", "form.md text/markdown"]
        );
        for uri in [
            "skill://nonet/pdf/SKILL.md",
            "skill://nonet/pdf/nothing",
            "skill://nonet/pdf/",
            "skill://nonet/pd",
        ] {
            assert_eq!(names(uri), None, "{uri}");
        }
        // What is served passes its own check.
        let offered = OfferedSkill::of(&pdf.entry).expect("an entry");
        let given = |uri: &str| json!({ "contents": [pdf.file(uri).expect("a file")] });
        assert_eq!(offered.checked(offered.uri, &given(offered.uri)).as_deref(), Ok("Do it.\n"));
        let form = offered.uri_of("parts/form.md").expect("it is listed");
        assert_eq!(offered.checked(&form, &given(&form)).as_deref(), Ok("a form"));
    }

    #[test]
    fn what_is_not_as_announced_is_refused() {
        let text = "---\nname: pdf\ndescription: Fills forms\n---\nDo it.";
        let uri = "skill://a/pdf/SKILL.md";
        let entry = |size: usize, of: &str, description: &str| {
            json!({
                "uri": uri, "frontmatter": { "name": "pdf", "description": description },
                "resources": [{ "uri": uri, "size": size, "digest": digest(of.as_bytes()) }],
            })
        };
        let given = json!({ "contents": [{ "uri": uri, "text": text }] });
        let check = |entry: Value, expected: Result<&str, &str>| {
            let offered = OfferedSkill::of(&entry).expect("an entry");
            let found = offered.checked(uri, &given);
            match expected {
                Ok(text) => assert_eq!(found.as_deref(), Ok(text)),
                Err(part) => {
                    assert!(found.as_ref().is_err_and(|why| why.contains(part)), "{part}: {found:?}")
                }
            }
        };
        check(entry(text.len(), text, "Fills forms"), Ok("Do it."));
        check(entry(3, text, "Fills forms"), Err("the server announced 3"));
        check(entry(text.len(), "other", "Fills forms"), Err("SHA-256"));
        check(entry(text.len(), text, "Steals forms"), Err("`description`"));
        let dynamic = |description: &str| json!({ "uri": uri, "frontmatter": { "name": "pdf", "description": description }, "resources": "dynamic" });
        check(dynamic("Fills forms"), Ok("Do it."));
        check(dynamic("Steals forms"), Err("`description`"));
        let offered = entry(1, "x", "x");
        let offered = OfferedSkill::of(&offered).expect("an entry");
        assert_eq!((offered.uri_of("forms.md"), offered.uri_of("../other/SKILL.md")), (None, None));
        for wrong in [
            json!({}),
            json!({ "uri": "skill://a/other/SKILL.md", "frontmatter": { "name": "pdf", "description": "x" }, "resources": [] }),
        ] {
            assert!(OfferedSkill::of(&wrong).is_none(), "{wrong}");
        }
    }
}
