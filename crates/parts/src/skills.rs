//! Skills: `SKILL.md` folders that a model can read and follow.
//!
//! A folder with a `SKILL.md` (front matter with `name` and `description`, then the text) is a skill. Files
//! beside it are read by relative path. Nothing outside the folder is read, even through links, and only
//! files of limited size: no pipe, no device. This room reads files and knows nothing of servers.

pub mod served;

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use nonet_base::{files, text::clip};

/// The file that makes a folder a skill.
const SKILL: &str = "SKILL.md";
/// The longest name and the longest description, in characters.
const MAX_NAME: usize = 100;
const MAX_DESCRIPTION: usize = 4_000;
/// The largest file served, in bytes.
const MAX_FILE: usize = 1 << 20;
/// How many skills are read, and how many entries of a folder are visited to find them.
const MAX_SKILLS: usize = 500;
const MAX_ENTRIES: usize = 10_000;
/// How many files of a skill are listed, and how deep the search for them goes.
const MAX_FILES: usize = 200;
const MAX_DEPTH: usize = 5;

/// One skill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skill {
    /// Its name: from the front matter, else the folder's.
    pub name: String,
    /// When to use it.
    pub description: String,
    /// The folder with its `SKILL.md`. Only files inside it can be read.
    pub folder: PathBuf,
}

/// Why a skill's file cannot be returned.
#[derive(Debug, thiserror::Error)]
pub enum SkillError {
    /// The path is empty or absolute, or leads outside, even through a link. Holds the path.
    #[error("`{0}` is not a relative path inside the skill's folder")]
    Outside(String),
    /// The folder has no such file.
    #[error("the skill has no file `{file}`; it has: {has}")]
    Missing {
        /// The requested path.
        file: String,
        /// The paths of the skill's files, joined by commas.
        has: String,
    },
    /// The file is too large, not a regular file or not UTF-8 text. Holds the path and the reason.
    #[error("`{0}` cannot be read as text: {1}")]
    Unreadable(String, String),
}

/// The contents of some folders.
#[derive(Debug, Default)]
pub struct FoundSkills {
    /// The skills, ordered by name.
    pub skills: Vec<Skill>,
    /// Why other folders with a `SKILL.md` are not skills.
    pub left_out: Vec<String>,
}

/// Reads all skills below the given folders. The first of two skills with the same name counts. Blocks.
pub fn load(folders: &[PathBuf]) -> FoundSkills {
    let mut all: Vec<Skill> = Vec::new();
    let mut left_out = Vec::new();
    for folder in folders {
        let mut found = vec![folder.clone()];
        match fs::read_dir(folder) {
            Ok(entries) => {
                found.extend(entries.flatten().take(MAX_ENTRIES).map(|entry| entry.path()));
                // The first of two skills with the same name counts, so the order must not depend on the
                // system.
                found[1..].sort();
            }
            Err(error) => tracing::debug!(folder = %folder.display(), %error, "no skills here"),
        }
        for folder in found {
            if all.len() == MAX_SKILLS {
                break;
            }
            let text = match read_inside(&folder, SKILL) {
                Ok(text) => text,
                Err(SkillError::Missing { .. }) => continue,
                Err(error) => {
                    left_out.push(format!("the skill in {} is left out: {error}", folder.display()));
                    continue;
                }
            };
            let skill = read(&text, &folder);
            if !all.iter().any(|other| other.name == skill.name) {
                all.push(skill);
            }
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    FoundSkills { skills: all, left_out }
}

fn read(text: &str, folder: &Path) -> Skill {
    #[derive(Default, serde::Deserialize)]
    struct Front {
        name: Option<String>,
        description: Option<String>,
    }
    let front: Front = split(text)
        .0
        .and_then(|front| {
            serde_saphyr::from_str_with_options(front, limits())
                .map_err(|error| tracing::warn!(folder = %folder.display(), %error, "the front matter of SKILL.md cannot be read"))
                .ok()
        })
        .unwrap_or_default();
    // `server/prompt` and `server:prompt` are prompts' names.
    let is_apart = |c: char| matches!(c, '/' | ':' | '\\') || c.is_control();
    let is_name = |name: &String| {
        let name = name.trim();
        !name.is_empty() && name.chars().count() <= MAX_NAME && !name.contains(is_apart)
    };
    let own = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Skill {
        name: front.name.filter(is_name).unwrap_or(own).trim().to_string(),
        description: clip(front.description.unwrap_or_default().trim(), MAX_DESCRIPTION),
        folder: folder.to_path_buf(),
    }
}

/// Limits of front matter. Real front matter has a few keys; an alias bomb or deep nesting is an error.
/// `yes` and `on` are text, as in YAML 1.2.
fn limits() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 10_000,
            max_aliases: 100,
            max_anchors: 100,
            max_depth: 16,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 10_000,
            max_replay_stack_depth: 8,
        },
        strict_booleans: true,
        with_snippet: false,
    }
}

/// Splits a text into its front matter, if any, and the rest.
fn split(text: &str) -> (Option<&str>, &str) {
    let text = text.trim_start_matches('\u{feff}');
    let Some(rest) = text.strip_prefix("---") else { return (None, text) };
    match rest.split_once("\n---") {
        Some((front, body)) => (Some(front), body.trim_start_matches('-').trim_start()),
        None => (None, text),
    }
}

impl Skill {
    /// Returns the skill's text without its front matter.
    pub fn text(&self) -> Result<String, SkillError> {
        Ok(split(&read_inside(&self.folder, SKILL)?).1.to_string())
    }

    /// Returns the files beside the skill, as sorted relative paths.
    pub fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        let mut open = vec![PathBuf::new()];
        while let Some(at) = open.pop() {
            for entry in fs::read_dir(self.folder.join(&at)).into_iter().flatten().flatten() {
                let path = at.join(entry.file_name());
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() && path.components().count() < MAX_DEPTH => open.push(path),
                    Ok(kind) if kind.is_file() && path != Path::new(SKILL) => {
                        files.push(path.to_string_lossy().replace('\\', "/"));
                    }
                    _ => {}
                }
                if files.len() == MAX_FILES {
                    open.clear();
                    break;
                }
            }
        }
        files.sort();
        files
    }

    /// Returns the content of a file beside the skill.
    pub fn file(&self, relative: &str) -> Result<String, SkillError> {
        let outside = || SkillError::Outside(relative.into());
        let path = Path::new(relative);
        let plain = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !plain || relative.is_empty() || relative.contains('\\') {
            return Err(outside());
        }
        read_inside(&self.folder, relative).map_err(|error| match error {
            SkillError::Missing { file, .. } => SkillError::Missing { file, has: self.files().join(", ") },
            other => other,
        })
    }
}

/// Reads a file in a folder. A link may lead outside even if the path does not, so its target is checked.
fn read_inside(folder: &Path, relative: &str) -> Result<String, SkillError> {
    let missing = || SkillError::Missing { file: relative.into(), has: String::new() };
    let folder = folder.canonicalize().map_err(|_| missing())?;
    let target = folder.join(relative).canonicalize().map_err(|_| missing())?;
    if !target.starts_with(&folder) {
        return Err(SkillError::Outside(relative.into()));
    }
    let unreadable = |why: String| SkillError::Unreadable(relative.into(), why);
    let bytes = files::read_at_most(&target, MAX_FILE).map_err(|error| unreadable(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| unreadable("it is not UTF-8 text".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skill_folder() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("release");
        fs::create_dir_all(folder.join("parts")).unwrap();
        fs::write(
            folder.join("SKILL.md"),
            "---\nname: release-notes\ndescription: >\n  Writes notes\n---\n# Do this\n",
        )
        .unwrap();
        fs::write(folder.join("parts/a.txt"), "part a").unwrap();
        fs::write(root.path().join("secret"), "secret").unwrap();
        root
    }

    #[test]
    fn a_folder_with_a_skill_is_found_and_read() {
        let root = skill_folder();
        let skills = load(&[root.path().to_path_buf(), root.path().join("nowhere")]).skills;
        assert_eq!(skills.len(), 1);
        assert_eq!(
            (skills[0].name.as_str(), skills[0].description.as_str()),
            ("release-notes", "Writes notes")
        );
        assert_eq!(skills[0].text().unwrap(), "# Do this\n");
        assert_eq!(skills[0].files(), ["parts/a.txt"]);
        assert_eq!(skills[0].file("parts/a.txt").unwrap(), "part a");
    }

    #[test]
    fn front_matter_is_read_within_limits() {
        let check = |front: &str, name: &str, description: &str| {
            let skill = read(&format!("---\n{front}\n---\nDo it."), Path::new("/skills/own-name"));
            assert_eq!((skill.name.as_str(), skill.description.as_str()), (name, description), "{front}");
        };
        check("name: a\ndescription: b\nlicense: MIT\nmetadata: {x: [1, 2]}", "a", "b");
        check("name: \"a b\"\ndescription: |\n  one\n  two", "a b", "one\ntwo");
        check("name: a\r\ndescription: 'it''s b'\r", "a", "it's b");
        check("description: é # why", "own-name", "é");
        check("", "own-name", "");
        check(&format!("name: {}", "a".repeat(MAX_NAME + 1)), "own-name", "");
        check("name: [a", "own-name", "");
        check("- a\n- b", "own-name", "");
        // A prompt's name.
        check("name: good/greet\ndescription: b", "own-name", "b");
        check("name: good:greet", "own-name", "");
        check(&format!("name: a\nx: {}", "[".repeat(100_000)), "own-name", "");
        let bomb = (1..20).fold("b0: &b0 [x, x]\n".to_string(), |text, n| {
            let before = n - 1;
            text + &format!("b{n}: &b{n} [{}]\n", vec![format!("*b{before}"); 9].join(", "))
        });
        check(&format!("{bomb}name: a"), "own-name", "");
    }

    #[test]
    fn no_path_leads_out_of_the_folder() {
        let root = skill_folder();
        let skill = &load(&[root.path().to_path_buf()]).skills[0];
        for path in ["../secret", "/etc/hostname", "parts/../../secret", "", "..\\secret"] {
            assert!(matches!(skill.file(path), Err(SkillError::Outside(_))), "{path}");
        }
        assert!(matches!(skill.file("none.txt"), Err(SkillError::Missing { .. })));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(root.path().join("secret"), skill.folder.join("link")).unwrap();
            assert!(matches!(skill.file("link"), Err(SkillError::Outside(_))));
        }
    }

    #[cfg(unix)]
    #[test]
    fn only_small_files_of_the_folder_itself_are_read() {
        use std::os::unix::fs::symlink;
        let root = skill_folder();
        let make = |name: &str| {
            let folder = root.path().join(name);
            fs::create_dir(&folder).unwrap();
            folder.join(SKILL)
        };
        let pipe = |path: PathBuf| {
            assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
        };
        symlink(root.path().join("secret"), make("stolen")).unwrap();
        symlink("/dev/zero", make("endless")).unwrap();
        pipe(make("hanging"));
        fs::write(make("huge"), vec![b'a'; MAX_FILE + 1]).unwrap();
        fs::create_dir(make("folder")).unwrap();
        // A link to a skill's folder, as users keep them, and a link inside one.
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("text.md"), "---\nname: linked\n---\nDo it.").unwrap();
        symlink("text.md", elsewhere.path().join(SKILL)).unwrap();
        symlink(elsewhere.path(), root.path().join("link")).unwrap();
        let FoundSkills { skills, left_out } = load(&[root.path().to_path_buf()]);
        assert_eq!(left_out.len(), 5, "{left_out:?}");
        let names: Vec<&str> = skills.iter().map(|skill| skill.name.as_str()).collect();
        assert_eq!(names, ["linked", "release-notes"]);
        assert_eq!(skills[0].text().unwrap(), "Do it.");
        let own = &skills[1];
        pipe(own.folder.join("pipe"));
        symlink("/dev/zero", own.folder.join("zero")).unwrap();
        assert!(matches!(own.file("pipe"), Err(SkillError::Unreadable(..))));
        assert!(matches!(own.file("zero"), Err(SkillError::Outside(_))));
        assert_eq!(own.files(), ["parts/a.txt"]);
        // A file that replaces one read before.
        fs::remove_file(own.folder.join(SKILL)).unwrap();
        symlink(root.path().join("secret"), own.folder.join(SKILL)).unwrap();
        assert!(matches!(own.text(), Err(SkillError::Outside(_))));
    }
}
