//! Restrictions on a process and its children: system calls, files by Landlock, memory and processes.

use std::{collections::BTreeMap, path::PathBuf};

use landlock::{
    ABI, Access, AccessFs, LandlockStatus, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};
use nix::{
    sys::{
        prctl::set_no_new_privs,
        resource::{Resource, getrlimit, setrlimit},
    },
    unistd::geteuid,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use super::{SandboxSpec, SetUpFault, start::system};

/// What Landlock restricts besides files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scopes {
    /// Nothing: the kernel does not support it.
    None,
    /// Signals to processes outside, and abstract sockets.
    SignalsAndSockets,
}

/// The memory that this process may still map after a limit on its address space: it has to start the
/// program.
const ROOM: u64 = 8 << 20;

/// Limits memory, processes and dumps. With a control group, which counts everything, the limits of a process
/// only make an allocation fail before the group's limit ends the program.
pub(super) fn limits(spec: &SandboxSpec, is_counted: bool) -> Result<(), SetUpFault> {
    let limit = |resource, most: u64| {
        let (_, hard) = getrlimit(resource)?;
        setrlimit(resource, most.min(hard), most.min(hard))
    };
    limit(Resource::RLIMIT_CORE, 0).map_err(system("a limit on dumps"))?;
    if let Some(bytes) = spec.memory_bytes {
        limit(Resource::RLIMIT_DATA, bytes).map_err(system("a limit on memory"))?;
        if !is_counted {
            // Also counts memory that processes share, and what is mapped of files.
            let bytes = bytes.max(mapped() + ROOM);
            limit(Resource::RLIMIT_AS, bytes).map_err(system("a limit on memory"))?;
        }
    }
    match spec.processes {
        Some(_) if is_counted => Ok(()),
        Some(_) if geteuid().is_root() && !spec.required => Ok(()),
        Some(_) if geteuid().is_root() => Err(SetUpFault::Settings(
            "`processes` has no effect for root: Linux counts root's processes only in a control group, and none \
             can be had here. Run Nonet as another user, remove `processes`, or set `required = false`"
                .into(),
        )),
        Some(processes) => {
            limit(Resource::RLIMIT_NPROC, processes).map_err(system("a limit on processes"))
        }
        None => Ok(()),
    }
}

/// Returns how much address space this process has mapped, in bytes.
fn mapped() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = pages.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or_default();
    // Larger pages only make the limit looser.
    pages.saturating_mul(4096)
}

/// Closes all files except these, as far as the kernel supports Landlock.
pub(super) fn landlock(readable: &[PathBuf], writable: &[PathBuf]) -> Scopes {
    match close_files(readable, writable) {
        Ok(RestrictionStatus { landlock: LandlockStatus::Available { effective_abi, .. }, .. })
            if effective_abi >= ABI::V6 =>
        {
            Scopes::SignalsAndSockets
        }
        _ => Scopes::None,
    }
}

fn close_files(readable: &[PathBuf], writable: &[PathBuf]) -> Result<RestrictionStatus, RulesetError> {
    let all = AccessFs::from_all(ABI::V6);
    Ruleset::default()
        .handle_access(all)?
        .scope(Scope::from_all(ABI::V6))?
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::from_read(ABI::V6)))?
        .add_rules(path_beneath_rules(writable, all))?
        .restrict_self()
}

/// System calls that change the machine or reach into other processes.
const REFUSED: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];
/// System calls for memory that belongs to no process, which no limit of a process counts.
const UNCOUNTED: [i64; 4] =
    [libc::SYS_memfd_create, libc::SYS_memfd_secret, libc::SYS_shmget, libc::SYS_msgget];
/// The bit that marks system calls in x86-64's other numbering (x32).
#[cfg(target_arch = "x86_64")]
const OTHER_NUMBERING: i64 = 0x4000_0000;

/// What is refused besides the system calls that no server needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusals {
    /// New network sockets.
    pub network: bool,
    /// New local sockets.
    pub sockets: bool,
    /// Memory that belongs to no process.
    pub memory: bool,
}

/// Refuses system calls.
pub(super) fn seccomp(refusals: Refusals) -> Result<(), SetUpFault> {
    set_no_new_privs().map_err(system("no new privileges"))?;
    let mut families = vec![libc::AF_NETLINK];
    if !refusals.sockets {
        families.push(libc::AF_UNIX);
    }
    if !refusals.network {
        families.extend([libc::AF_INET, libc::AF_INET6]);
    }
    let failed = system::<String>("system call filters");
    let mut refused = refused(&families).map_err(|error| failed(error.to_string()))?;
    if refusals.memory {
        refused.extend(UNCOUNTED.map(|number| (number, Vec::new())));
    }
    let refusal = |number: i32| SeccompAction::Errno(number.unsigned_abs());
    // glibc and Node fall back if the kernel lacks these two calls.
    let unknown: BTreeMap<i64, Vec<SeccompRule>> = [(libc::SYS_clone3, Vec::new())].into();
    for (rules, action) in [(unknown, refusal(libc::ENOSYS)), (refused, refusal(libc::EPERM))] {
        let arch = std::env::consts::ARCH
            .try_into()
            .map_err(|_| failed("this processor is not supported".into()))?;
        let filter = SeccompFilter::new(numbered(rules), SeccompAction::Allow, action, arch);
        let program: BpfProgram =
            filter.and_then(TryInto::try_into).map_err(|error| failed(error.to_string()))?;
        seccompiler::apply_filter(&program).map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

fn refused(families: &[i32]) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let condition = |argument, operator, value: i64| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value.unsigned_abs())
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|number| (*number, Vec::new())).collect();
    let namespaces = [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ];
    let mut of_clone = Vec::new();
    for flag in namespaces.map(i64::from) {
        let masked = SeccompCmpOp::MaskedEq(flag.unsigned_abs());
        of_clone.push(SeccompRule::new(vec![condition(0, masked, flag)?])?);
    }
    rules.insert(libc::SYS_clone, of_clone);
    let mut others = Vec::new();
    for family in families {
        others.push(condition(0, SeccompCmpOp::Ne, i64::from(*family))?);
    }
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(others)?]);
    // Block input into the terminal that Nonet was started from.
    let mut of_ioctl = Vec::new();
    for request in [0x5412, 0x541c] {
        of_ioctl.push(SeccompRule::new(vec![condition(1, SeccompCmpOp::Eq, request)?])?);
    }
    rules.insert(libc::SYS_ioctl, of_ioctl);
    Ok(rules)
}

/// Adds the same rules for the other numbering.
fn numbered(rules: BTreeMap<i64, Vec<SeccompRule>>) -> BTreeMap<i64, Vec<SeccompRule>> {
    #[cfg(target_arch = "x86_64")]
    let rules = {
        let mut rules = rules;
        let others: Vec<_> =
            rules.iter().map(|(number, rules)| (number | OTHER_NUMBERING, rules.clone())).collect();
        rules.extend(others);
        rules
    };
    rules
}
