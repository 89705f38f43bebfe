//! The root folder of a sandbox: an empty one, into which the visible paths are mounted. Anything else does
//! not exist for the program, neither files nor the sockets of other services.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    os::unix::{ffi::OsStringExt, fs::symlink},
    path::{Component, Path, PathBuf},
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    unistd::{chdir, pivot_root},
};

use super::{Places, SandboxSpec, SetUpFault, start::system};

/// Where the old root is for a moment.
const OLD: &str = "/.old";
/// Harmless devices.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// Parts of `/proc` that belong to the whole machine, and that programs may read.
const MACHINE: [&str; 4] = ["sys", "irq", "bus", "fs"];
/// Parts of `/proc` that show or change the whole machine. Root could open them.
const CLOSED: [&str; 22] = [
    "acpi",
    "asound",
    "interrupts",
    "iomem",
    "ioports",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "modules",
    "pagetypeinfo",
    "sched_debug",
    "scsi",
    "slabinfo",
    "sysrq-trigger",
    "timer_list",
    "vmallocinfo",
];
/// The most bytes of the folders in memory: the temporary one, the one for shared memory, and the home folder
/// that ends with its server.
const TEMPORARY: u64 = 512 << 20;
const SHARED: u64 = 256 << 20;
const HOME: u64 = 512 << 20;
/// The mount options of the folder that replaces a hidden one: folders mounted below it are reachable, and
/// nothing else.
const EMPTY: &str = "mode=0111,size=64k,nr_inodes=64";

/// The action at one path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Shows a path from outside, by its real path.
    Show { real: PathBuf, writable: bool },
    /// A link to a path that is shown.
    Link(PathBuf),
    /// The program's own home folder.
    Home(Option<PathBuf>),
    /// Hides what is there.
    Hide,
    /// An empty folder, into which single entries of the original are mounted.
    Apart,
}

/// Enters a new root folder. The process must be alone in its mount namespace.
pub(super) fn enter(spec: &SandboxSpec, places: &Places) -> Result<(), SetUpFault> {
    let steps = steps(spec, places);
    begin(spec).map_err(system("mounts"))?;
    mount_new("proc", "/proc", "").map_err(system("a separate /proc"))?;
    for (path, step) in in_order(&steps) {
        perform(spec, path, step).map_err(|error| {
            SetUpFault::Settings(format!("{} cannot be shown in its sandbox: {error}", path.display()))
        })?;
    }
    devices().map_err(system("devices"))?;
    close(&steps).map_err(system("read-only mounts"))?;
    let cwd = places.cwd.as_deref().or(spec.home.as_deref()).unwrap_or(Path::new("/tmp"));
    chdir(cwd).map_err(|error| {
        SetUpFault::Settings(format!("its folder {} is not in its sandbox: {error}", cwd.display()))
    })
}

/// Determines the action at each path.
fn steps(spec: &SandboxSpec, places: &Places) -> BTreeMap<PathBuf, Step> {
    let mut steps = BTreeMap::new();
    if let Some(home) = &spec.home {
        let home = fs::canonicalize(home).unwrap_or_else(|_| home.clone());
        steps.insert(home, Step::Home(spec.own.clone()));
    }
    let shown = [(&places.system, false), (&places.read, false), (&places.write, true)];
    for (paths, writable) in shown {
        for path in paths {
            let Ok(real) = fs::canonicalize(path) else { continue };
            let is_plain = !path.components().any(|part| part == Component::ParentDir);
            if real != *path && is_plain {
                steps.entry(path.clone()).or_insert(Step::Link(real.clone()));
            }
            steps.insert(real.clone(), Step::Show { real, writable });
        }
    }
    if let Some(home) =
        spec.home.as_ref().filter(|home| fs::canonicalize(home).is_ok_and(|real| real != **home))
    {
        let real = fs::canonicalize(home).unwrap_or_else(|_| home.clone());
        steps.entry(home.clone()).or_insert(Step::Link(real));
    }
    for path in &places.hidden {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        // Writable folders around it become mounts, too, because a mount cannot be renamed.
        let around: Vec<PathBuf> = real.ancestors().skip(1).map(Into::into).collect();
        let writable = |step: Option<&Step>| matches!(step, Some(Step::Show { writable: true, .. }));
        if let Some(outer) = around.iter().position(|folder| writable(steps.get(folder))) {
            for folder in &around[..outer] {
                let step = Step::Show { real: folder.clone(), writable: true };
                steps.entry(folder.clone()).or_insert(step);
            }
        }
        // A mount on a file is lost when the file is replaced outside, so the other entries of its folder are
        // shown one by one. Not where the program writes, because new files would be lost.
        let folder = real.parent().filter(|_| !real.is_dir()).map(Path::to_path_buf);
        let around =
            folder.as_deref().and_then(|at| at.ancestors().find_map(|path| steps.get(path))).cloned();
        if let (Some(folder), Some(Step::Show { writable: false, .. })) = (folder, around) {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let step = match fs::read_link(&path) {
                    Ok(target) => Step::Link(target),
                    Err(_) => Step::Show { real: path.clone(), writable: false },
                };
                steps.entry(path).or_insert(step);
            }
            steps.insert(folder, Step::Apart);
        }
        steps.insert(real, Step::Hide);
    }
    steps.extend(places.sockets.iter().map(|socket| (socket.clone(), Step::Hide)));
    steps
}

/// Returns the steps with outer folders first, so that inner mounts stay.
fn in_order(steps: &BTreeMap<PathBuf, Step>) -> Vec<(&PathBuf, &Step)> {
    let mut ordered: Vec<_> = steps.iter().collect();
    ordered.sort_by_key(|(path, _)| path.components().count());
    ordered
}

/// Replaces the root by an empty in-memory folder; the old root stays at [`OLD`] for now.
fn begin(spec: &SandboxSpec) -> io::Result<()> {
    let size = |most: u64| format!("mode=1777,size={}", in_memory(spec, most));
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_SLAVE | MsFlags::MS_REC, none)?;
    let base = ["/tmp", "/run", "/mnt", "/var"].into_iter().find(|folder| Path::new(folder).is_dir());
    let base = base.ok_or_else(|| io::Error::other("there is no folder to mount at"))?;
    mount_new("tmpfs", base, "mode=0755,size=8m")?;
    let old = format!("{base}{OLD}");
    fs::create_dir(&old)?;
    pivot_root(base, old.as_str())?;
    chdir("/")?;
    for (folder, options) in
        [("/proc", None), ("/dev", None), ("/dev/shm", Some(size(SHARED))), ("/tmp", Some(size(TEMPORARY)))]
    {
        fs::create_dir_all(folder)?;
        if let Some(options) = options {
            mount_new("tmpfs", folder, &options)?;
        }
    }
    fs::create_dir_all("/var")?;
    symlink("/tmp", "/var/tmp")
}

/// Returns the size of a folder in memory: a full folder must be noticed before a limit on memory ends the
/// program.
fn in_memory(spec: &SandboxSpec, most: u64) -> u64 {
    spec.memory_bytes.map_or(most, |bytes| most.min(bytes / 4))
}

fn mount_new(kind: &str, at: &str, options: &str) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    Ok(mount(Some(kind), at, Some(kind), flags, Some(options))?)
}

fn bind(from: &Path, at: &Path) -> io::Result<()> {
    let none = None::<&str>;
    Ok(mount(Some(from), at, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?)
}

/// Returns the place of a path in the old root.
fn outside(path: &Path) -> PathBuf {
    Path::new(OLD).join(path.strip_prefix("/").unwrap_or(path))
}

fn perform(spec: &SandboxSpec, path: &Path, step: &Step) -> io::Result<()> {
    match step {
        Step::Show { real, .. } => {
            let from = outside(real);
            // It existed a moment ago. If it has gone since, it is not shown.
            let Ok(found) = fs::symlink_metadata(&from) else { return Ok(()) };
            make_place(path, found.is_dir())?;
            bind(&from, path)
        }
        Step::Home(Some(own)) => {
            make_place(path, true)?;
            bind(&outside(own), path)
        }
        Step::Home(None) => {
            make_place(path, true)?;
            mount_new("tmpfs", &path.to_string_lossy(), &format!("mode=0700,size={}", in_memory(spec, HOME)))
        }
        Step::Link(target) => {
            // If a parent folder is itself a link, that link leads there.
            let folder = path.parent().unwrap_or(Path::new("/"));
            if fs::symlink_metadata(path).is_ok() || make_place(folder, true).is_err() {
                return Ok(());
            }
            symlink(target, path)
        }
        Step::Apart => {
            make_place(path, true)?;
            mount_new("tmpfs", &path.to_string_lossy(), "mode=0755,size=1m")
        }
        Step::Hide => match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => mount_new("tmpfs", &path.to_string_lossy(), EMPTY),
            Ok(found) if !found.is_symlink() => bind(&outside(Path::new("/dev/null")), path),
            _ => Ok(()),
        },
    }
}

/// Creates the mount point, unless it exists. A link on the way is a fault: the program may have made it.
fn make_place(path: &Path, is_folder: bool) -> io::Result<()> {
    let parts: Vec<&Path> = path.ancestors().collect();
    for part in parts.into_iter().rev() {
        match fs::symlink_metadata(part) {
            Ok(found) if found.is_symlink() => {
                return Err(io::Error::other(format!(
                    "{} is a link in its home folder; remove it",
                    part.display()
                )));
            }
            Ok(_) => {}
            Err(_) if part == path && !is_folder => fs::write(part, "")?,
            Err(_) => fs::create_dir(part)?,
        }
    }
    Ok(())
}

fn devices() -> io::Result<()> {
    for name in DEVICES {
        let (from, at) = (outside(&Path::new("/dev").join(name)), Path::new("/dev").join(name));
        if from.exists() {
            fs::write(&at, "")?;
            bind(&from, &at)?;
        }
    }
    for (name, target) in [("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        symlink(Path::new("/proc/self").join(target), Path::new("/dev").join(name))?;
    }
    Ok(())
}

/// Detaches the old root, and remounts read-only what must not be written.
fn close(steps: &BTreeMap<PathBuf, Step>) -> io::Result<()> {
    umount2(OLD, MntFlags::MNT_DETACH)?;
    fs::remove_dir(OLD)?;
    for part in MACHINE.map(|part| Path::new("/proc").join(part)).iter().filter(|part| part.exists()) {
        bind(part, part)?;
    }
    // Nobody can open a device on a mount without devices.
    for part in CLOSED.map(|part| Path::new("/proc").join(part)) {
        match fs::metadata(&part) {
            Ok(found) if found.is_dir() => mount_new("tmpfs", &part.to_string_lossy(), EMPTY)?,
            Ok(_) => bind(Path::new("/dev/null"), &part)?,
            Err(_) => {}
        }
    }
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    for (place, options) in table.lines().filter_map(mount_of) {
        let is_device = place.starts_with("/dev") && place != Path::new("/dev/shm");
        if place == Path::new("/proc") || is_device {
            continue;
        }
        let mut around = place.ancestors().filter_map(|path| steps.get(path));
        let is_own = place == Path::new("/tmp") || place == Path::new("/dev/shm");
        let is_writable = is_own
            || match around.find(|step| !matches!(step, Step::Link(_))) {
                Some(Step::Show { writable, .. }) => *writable,
                Some(Step::Home(_)) => true,
                _ => false,
            };
        let mut flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        if !is_writable || has(&options, "ro") {
            flags |= MsFlags::MS_RDONLY;
        }
        if has(&options, "noexec") {
            flags |= MsFlags::MS_NOEXEC;
        }
        let none = None::<&str>;
        mount(none, &place, none, flags, none)?;
    }
    Ok(())
}

fn has(options: &str, option: &str) -> bool {
    options.split(',').any(|given| given == option)
}

/// Parses a line of `mountinfo`. Returns the mount point and the options.
fn mount_of(line: &str) -> Option<(PathBuf, String)> {
    let mut fields = line.split(' ').skip(4);
    let (place, options) = (fields.next()?, fields.next()?);
    let mut path = Vec::with_capacity(place.len());
    let mut rest = place.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'\\').then(|| tail.get(..3)).flatten();
        let number = escaped.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        (path, rest) = match number {
            Some(byte) => {
                path.push(byte);
                (path, &tail[3..])
            }
            None => {
                path.push(*first);
                (path, tail)
            }
        };
    }
    Some((PathBuf::from(OsString::from_vec(path)), options.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read() {
        let check = |line: &str, expected: (&str, &str)| {
            let (path, options) = mount_of(line).expect("a mount");
            assert_eq!((path.to_str(), options.as_str()), (Some(expected.0), expected.1));
        };
        check("36 35 98:0 / /a\\040b ro,noexec - ext4 /dev/x rw", ("/a b", "ro,noexec"));
        check("1 0 0:1 / / rw,relatime shared:1 - tmpfs tmpfs rw", ("/", "rw,relatime"));
    }
}
