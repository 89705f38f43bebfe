//! A control group for a sandbox's limits: it counts the memory and the processes of all its members
//! together, shared memory, files in memory and root's processes included.
//!
//! A group is made where this user may make one: in version 2, beside the gateway's own group, below the
//! nearest group that shares its controllers out; in version 1, below the gateway's own group of each
//! controller.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use nonet_base::text::clip;

/// How the name of a group begins; the number of its process follows.
const PREFIX: &str = "nonet-";
/// The file with the members of a group. Writing `0` moves the writer.
const MEMBERS: &str = "cgroup.procs";
/// How often, and how long apart, a group is removed again that the system still clears.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// A limit of a controller.
#[derive(Clone, Copy, Debug)]
struct Limit {
    controller: &'static str,
    value: u64,
}

/// A control group, or one for each controller. It is removed when dropped, once it is empty.
#[derive(Debug)]
pub(super) struct Group {
    /// The folders of the group, and the folder of this process's own group in the same hierarchy.
    folders: Vec<(PathBuf, PathBuf)>,
}

/// Where a group of a hierarchy can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    parent: PathBuf,
    own: PathBuf,
    is_second: bool,
}

impl Group {
    /// Makes a group with these limits. Returns why none can be had.
    pub(crate) fn make(server: &str, memory: Option<u64>, processes: Option<u64>) -> Result<Self, String> {
        let read = |file| fs::read_to_string(file).map_err(|error| format!("`{file}`: {error}"));
        let (mounts, own) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
        Self::make_in(&hierarchies(&mounts, &own), server, memory, processes)
    }

    fn make_in(
        hierarchies: &Hierarchies,
        server: &str,
        memory: Option<u64>,
        processes: Option<u64>,
    ) -> Result<Self, String> {
        // The first process of the sandbox is Nonet's.
        let processes = processes.map(|most| Limit { controller: "pids", value: most.saturating_add(1) });
        let memory = memory.map(|value| Limit { controller: "memory", value });
        let limits: Vec<Limit> = memory.into_iter().chain(processes).collect();
        if limits.is_empty() {
            return Err("there is nothing to limit".into());
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{count}-{}", std::process::id(), clip(server, 40));
        let mut group = Self { folders: Vec::new() };
        for (place, limits) in places(hierarchies, &limits)? {
            let folder = place.parent.join(&name);
            let at = |error: io::Error| format!("`{}`: {error}", folder.display());
            sweep(&place.parent);
            fs::create_dir(&folder).map_err(at)?;
            group.folders.push((folder.clone(), place.own));
            for limit in limits {
                set(&folder, limit, place.is_second).map_err(at)?;
            }
        }
        Ok(group)
    }

    /// Moves this process, and with it all children that it starts from now on, into the group.
    pub(crate) fn entered(self) -> Result<Self, String> {
        let entered = self.folders.iter().try_for_each(|(folder, _)| {
            fs::write(folder.join(MEMBERS), "0").map_err(|error| format!("`{}`: {error}", folder.display()))
        });
        if let Err(why) = entered {
            self.leave();
            return Err(why);
        }
        Ok(self)
    }

    /// Moves this process back, without its children.
    pub(crate) fn leave(&self) {
        for (_, own) in &self.folders {
            let _ = fs::write(own.join(MEMBERS), "0");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for (folder, _) in &self.folders {
            for _ in 0..TRIES {
                match fs::remove_dir(folder) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(PAUSE),
                    _ => break,
                }
            }
        }
    }
}

/// Sets a limit of a group.
fn set(folder: &Path, limit: &Limit, is_second: bool) -> io::Result<()> {
    let value = limit.value.to_string();
    let write = |file: &str, value: &str| fs::write(folder.join(file), value);
    match (limit.controller, is_second) {
        ("memory", true) => {
            write("memory.max", &value)?;
            // Not every system counts what is swapped out.
            let _ = write("memory.swap.max", "0");
            Ok(())
        }
        ("memory", false) => {
            write("memory.limit_in_bytes", &value)?;
            let _ = write("memory.memsw.limit_in_bytes", &value);
            Ok(())
        }
        _ => write("pids.max", &value),
    }
}

/// Removes the groups of processes that were killed. A group with members stays.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).map(|(id, _)| id);
        if process.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The hierarchies of the system: the folder of this process's own group and the folder where the hierarchy
/// is mounted, of version 2 and of each controller of version 1.
#[derive(Debug, Default, PartialEq, Eq)]
struct Hierarchies {
    second: Option<(PathBuf, PathBuf)>,
    first: BTreeMap<String, PathBuf>,
}

/// Reads `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn hierarchies(mounts: &str, own: &str) -> Hierarchies {
    let mut found = Hierarchies::default();
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (mut before, mut after) = (before.split(' ').skip(3), after.split(' '));
        let (Some(root), Some(at), Some(kind)) = (before.next(), before.next(), after.next()) else {
            continue;
        };
        let options = after.nth(1).unwrap_or_default();
        for line in own.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            // A container sees a part of the hierarchy.
            let Ok(inner) = Path::new(path).strip_prefix(root) else { continue };
            let folder = Path::new(at).join(inner);
            match kind {
                "cgroup2" if controllers.is_empty() => found.second = Some((folder, at.into())),
                "cgroup" => {
                    let of_mount = |controller: &&str| options.split(',').any(|option| option == *controller);
                    for controller in controllers.split(',').filter(of_mount) {
                        found.first.insert(controller.into(), folder.clone());
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// Finds where groups for these limits can be made. In version 2, a process is in one group only, so one
/// place has all.
fn places<'a>(
    hierarchies: &Hierarchies,
    limits: &'a [Limit],
) -> Result<Vec<(Place, Vec<&'a Limit>)>, String> {
    if let Some((own, at)) = &hierarchies.second {
        let shares_all = |folder: &&Path| {
            let shared = fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
            limits.iter().all(|limit| shared.split_whitespace().any(|name| name == limit.controller))
        };
        let parent = own.ancestors().take_while(|folder| folder.starts_with(at)).find(shares_all);
        if let Some(parent) = parent {
            let place = Place { parent: parent.into(), own: own.clone(), is_second: true };
            return Ok(vec![(place, limits.iter().collect())]);
        }
    }
    let first = limits.iter().map(|limit| {
        let own = hierarchies.first.get(limit.controller).ok_or_else(|| {
            format!("no group above this one shares the controller `{}` out", limit.controller)
        })?;
        Ok((Place { parent: own.clone(), own: own.clone(), is_second: false }, vec![limit]))
    });
    first.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_groups_are_read() {
        let check = |mounts: &str, own: &str, second: Option<(&str, &str)>, first: &[(&str, &str)]| {
            let expected = Hierarchies {
                second: second.map(|(own, at)| (own.into(), at.into())),
                first: first.iter().map(|(name, path)| (name.to_string(), path.into())).collect(),
            };
            assert_eq!(hierarchies(mounts, own), expected);
        };
        let second = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        check(
            second,
            "0::/user.slice/a.scope",
            Some(("/sys/fs/cgroup/user.slice/a.scope", "/sys/fs/cgroup")),
            &[],
        );
        let of_container = "30 23 0:26 /docker/a /sys/fs/cgroup ro - cgroup2 cgroup rw";
        check(of_container, "0::/docker/a/b", Some(("/sys/fs/cgroup/b", "/sys/fs/cgroup")), &[]);
        check(of_container, "0::/", None, &[]);
        let first = "40 23 0:27 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n41 23 0:28 / /cg/pids rw - cgroup cgroup rw,pids";
        check(
            first,
            "5:pids:/x\n2:cpu,cpuacct:/\n0::/",
            None,
            &[("cpu", "/cg/cpu"), ("cpuacct", "/cg/cpu"), ("pids", "/cg/pids/x")],
        );
    }

    /// Folders in place of the system's; a group's files are plain files there.
    #[test]
    fn a_group_is_made_below_the_nearest_that_shares_its_controllers() {
        let root = tempfile::tempdir().expect("a folder");
        let path = |inside: &str| root.path().join(inside);
        fs::create_dir_all(path("user/app/term.scope")).expect("made");
        fs::write(path("cgroup.subtree_control"), "cpu memory pids").expect("written");
        fs::write(path("user/cgroup.subtree_control"), "memory pids\n").expect("written");
        fs::write(path("user/app/cgroup.subtree_control"), "memory").expect("written");
        let own = path("user/app/term.scope");
        let hierarchies =
            Hierarchies { second: Some((own.clone(), root.path().into())), first: BTreeMap::new() };
        let check = |memory, processes, parent: &str| {
            let group = Group::make_in(&hierarchies, "s", memory, processes).expect("made");
            let [(folder, back)] = &group.folders[..] else { panic!("{group:?}") };
            assert_eq!((folder.parent(), back), (Some(path(parent).as_path()), &own));
            let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
            assert_eq!(read("memory.max"), memory.map(|bytes: u64| bytes.to_string()));
            assert_eq!(read("pids.max"), processes.map(|most: u64| (most + 1).to_string()));
            fs::remove_dir_all(folder).expect("removed");
        };
        check(Some(100), None, "user/app");
        check(Some(100), Some(9), "user");
        let none = Hierarchies { second: Some((own, path("user/app"))), first: BTreeMap::new() };
        let why = Group::make_in(&none, "s", None, Some(9)).expect_err("not shared");
        assert!(why.contains("shares the controller `pids` out"), "{why}");
    }
}
