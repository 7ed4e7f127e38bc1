//! The seccomp filter of every sandboxed process: refuses system calls that could bypass a view, and network access if
//! that is restricted.
//!
//! Arguments are compared as the kernel uses them. For example, the request of an `ioctl`, a pid and the family of a
//! socket are 32-bit values, so the filter ignores the upper half of the register.
//!
//! The program is generated here and not by seccompiler, which compares the numbers one after another. When a filter is
//! installed, that is, at every start, the kernel evaluates it for every system call number. Measured on Linux 6.18
//! with 61 numbers: 132 µs for a list, 48 µs for a binary search. libseccomp can generate a binary search, but it is a
//! C library, and the build needs no other.

use std::{collections::BTreeMap, sync::OnceLock};

use libc::{c_long, sock_filter};

use crate::kit::Ipc;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

// The kernel's `SECCOMP_RET_…`, with an errno in the lower half.
const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32;
const NO_SUCH_CALL: u32 = 0x0005_0000 | libc::ENOSYS as u32;

// BPF instruction codes.
const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const KEEP_BITS: u16 = 0x54;
const SKIP: u16 = 0x05;
const RETURN: u16 = 0x06;

/// The bits of `socket`'s type argument that are the type. The others are flags.
const SOCKET_TYPE_BITS: u32 = 0xf;

/// Offsets in the kernel's `seccomp_data`, for little endian.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// System calls that could bypass the sandbox or change the host, and that ordinary programs can do without.
const REFUSED: &[c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    // open_tree_attr
    467,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_quotactl,
];

/// Flags of `clone` that create a namespace. In a new user namespace a process has all capabilities, and with them ways
/// around a view. CLONE_NEWTIME is not included: the lowest eight bits are the exit signal here.
const CLONE_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// Flags of `unshare` that create a namespace, including CLONE_NEWTIME.
const UNSHARE_NAMESPACES: u32 = CLONE_NAMESPACES | 0x80;

/// System calls that can change another process: its limits (a CPU limit of zero kills it), its scheduling, and the
/// placement of its memory. Landlock covers none of them. Each entry is a call, the index of an argument, and the value
/// of that argument that means the caller itself. For a call with two entries, both arguments must have that value.
const ABOUT_OTHERS: &[(c_long, u32, u32)] = &[
    (libc::SYS_prlimit64, 0, 0),
    (libc::SYS_sched_setaffinity, 0, 0),
    (libc::SYS_sched_setscheduler, 0, 0),
    (libc::SYS_sched_setattr, 0, 0),
    (libc::SYS_sched_setparam, 0, 0),
    // PRIO_PROCESS.
    (libc::SYS_setpriority, 0, 0),
    (libc::SYS_setpriority, 1, 0),
    // IOPRIO_WHO_PROCESS.
    (libc::SYS_ioprio_set, 0, 1),
    (libc::SYS_ioprio_set, 1, 0),
    (libc::SYS_migrate_pages, 0, 0),
    (libc::SYS_move_pages, 0, 0),
];

/// System calls that find or use an IPC object by key, id or name. Refused if the process has no IPC namespace of its
/// own.
const OF_IPC: &[c_long] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// The maximum number of refused calls per leaf of the tree. A leaf with several calls needs fewer instructions than
/// one leaf for each.
const LEAF: usize = 4;

/// The BPF program for the kernel. Each variant is created once.
pub(crate) fn program(is_network_restricted: bool, ipc: Ipc) -> &'static [sock_filter] {
    static PROGRAMS: [[OnceLock<Vec<sock_filter>>; 2]; 2] = [const { [const { OnceLock::new() }; 2] }; 2];
    PROGRAMS[usize::from(is_network_restricted)][ipc as usize].get_or_init(|| make(is_network_restricted, ipc))
}

fn make(is_network_restricted: bool, ipc: Ipc) -> Vec<sock_filter> {
    // Another architecture has other system call numbers.
    let mut out = vec![load(ARCH), jump(IF_EQUAL, ARCHITECTURE, 1, 0), return_code(KILL), load(NUMBER)];
    if cfg!(target_arch = "x86_64") {
        // The x32 system calls.
        out.extend([jump(IF_AT_LEAST, 0x4000_0000, 0, 1), return_code(KILL)]);
    }
    out.extend(tree(&leaves(rules(is_network_restricted, ipc))));
    out
}

/// The decision about a system call.
enum SyscallRule {
    Refuse,
    /// Instructions that refuse the call or fall through. A call that reaches their end is allowed.
    Unless(Vec<sock_filter>),
}

fn rules(is_network_restricted: bool, ipc: Ipc) -> BTreeMap<u32, SyscallRule> {
    let of_ipc = OF_IPC.iter().filter(|_| ipc == Ipc::Refused);
    let mut rules: BTreeMap<u32, SyscallRule> =
        REFUSED.iter().chain(of_ipc).map(|number| (to_u32(*number), SyscallRule::Refuse)).collect();
    let mut unless = |number: c_long, steps: &[sock_filter]| {
        if let SyscallRule::Unless(all) = rules.entry(to_u32(number)).or_insert_with(|| SyscallRule::Unless(Vec::new()))
        {
            all.extend(steps);
        }
    };
    for (number, index, own) in ABOUT_OTHERS {
        unless(*number, &[load(argument(*index)), jump(IF_EQUAL, *own, 1, 0), return_code(REFUSE)]);
    }
    for (number, flags) in [(libc::SYS_clone, CLONE_NAMESPACES), (libc::SYS_unshare, UNSHARE_NAMESPACES)] {
        unless(number, &[load(argument(0)), jump(IF_ANY_BIT, flags, 0, 1), return_code(REFUSE)]);
    }
    // `clone3` has its flags in memory, which a filter cannot read. With ENOSYS, libraries fall back to `clone`.
    unless(libc::SYS_clone3, &[return_code(NO_SUCH_CALL)]);
    // These requests inject input into a terminal, as if the user had typed it.
    for request in [libc::TIOCSTI, libc::TIOCLINUX] {
        unless(libc::SYS_ioctl, &[load(argument(1)), jump(IF_EQUAL, request as u32, 0, 1), return_code(REFUSE)]);
    }
    if is_network_restricted {
        for socket in [libc::SYS_socket, libc::SYS_socketpair] {
            unless(socket, &[load(argument(0)), jump(IF_EQUAL, libc::AF_UNIX as u32, 1, 0), return_code(REFUSE)]);
            // Allow only connection-oriented types. A datagram socket needs no connection: each datagram can have its
            // own address, in memory that a filter cannot read. Raw Unix sockets are datagram sockets too.
            unless(
                socket,
                &[
                    load(argument(1)),
                    instruction(KEEP_BITS, SOCKET_TYPE_BITS),
                    jump(IF_EQUAL, libc::SOCK_STREAM as u32, 2, 0),
                ],
            );
            unless(socket, &[jump(IF_EQUAL, libc::SOCK_SEQPACKET as u32, 1, 0), return_code(REFUSE)]);
        }
        // A message needs an address or a connection. `connect` is refused, and so is an address in `sendto`. A filter
        // cannot read the address in `sendmsg`, but sockets of the types allowed above do not use it.
        // The address is a 64-bit pointer, so compare both halves with zero.
        for half in [argument(4), argument(4) + 4] {
            unless(libc::SYS_sendto, &[load(half), jump(IF_EQUAL, 0, 1, 0), return_code(REFUSE)]);
        }
        rules.insert(to_u32(libc::SYS_connect), SyscallRule::Refuse);
    }
    rules
}

/// The leaves of the tree, in order: each has its lowest system call number, and the instructions that decide. These
/// expect the number to be loaded.
fn leaves(rules: BTreeMap<u32, SyscallRule>) -> Vec<(u32, Vec<sock_filter>)> {
    let mut out = Vec::new();
    let mut refused: Vec<u32> = Vec::new();
    let refusing_leaf = |refused: &mut Vec<u32>| {
        let count = refused.len();
        let first = *refused.first()?;
        let to_the_end = |(at, number): (usize, u32)| jump(IF_EQUAL, number, (count - at) as u8, 0);
        let steps = refused.drain(..).enumerate().map(to_the_end).chain([return_code(ALLOW), return_code(REFUSE)]);
        Some((first, steps.collect()))
    };
    for (number, rule) in rules {
        match rule {
            SyscallRule::Refuse => {
                refused.push(number);
                if refused.len() == LEAF {
                    out.extend(refusing_leaf(&mut refused));
                }
            }
            SyscallRule::Unless(steps) => {
                out.extend(refusing_leaf(&mut refused));
                let mut leaf = vec![jump(IF_EQUAL, number, 0, steps.len() as u8)];
                leaf.extend(steps);
                leaf.push(return_code(ALLOW));
                out.push((number, leaf));
            }
        }
    }
    out.extend(refusing_leaf(&mut refused));
    out
}

/// A binary search for the leaf. The module documentation has the reason.
fn tree(leaves: &[(u32, Vec<sock_filter>)]) -> Vec<sock_filter> {
    match leaves {
        [] => vec![return_code(ALLOW)],
        [(_, steps)] => steps.clone(),
        _ => {
            let (low, high) = leaves.split_at(leaves.len() / 2);
            let (below, above) = (tree(low), tree(high));
            let from = high.first().map_or(0, |(from, _)| *from);
            let skipped = u32::try_from(below.len()).unwrap_or(u32::MAX);
            // A conditional jump reaches at most 255 instructions, so it only decides about an unconditional jump.
            let mut out = vec![jump(IF_AT_LEAST, from, 0, 1), instruction(SKIP, skipped)];
            out.extend(below);
            out.extend(above);
            out
        }
    }
}

fn to_u32(number: c_long) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

const fn instruction(code: u16, value: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k: value }
}

const fn load(offset: u32) -> sock_filter {
    instruction(LOAD, offset)
}

const fn jump(code: u16, value: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code, jt: yes, jf: no, k: value }
}

const fn return_code(answer: u32) -> sock_filter {
    instruction(RETURN, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All variants of the program.
    const KINDS: [(bool, Ipc); 4] = [(false, Ipc::Own), (true, Ipc::Own), (false, Ipc::Refused), (true, Ipc::Refused)];

    /// Interprets the program as the kernel would.
    fn answer(program: &[sock_filter], number: c_long, arguments: [u64; 6]) -> u32 {
        let mut data = [0_u8; 64];
        data[0..4].copy_from_slice(&to_u32(number).to_le_bytes());
        data[4..8].copy_from_slice(&ARCHITECTURE.to_le_bytes());
        for (at, argument) in arguments.iter().enumerate() {
            data[16 + 8 * at..24 + 8 * at].copy_from_slice(&argument.to_le_bytes());
        }
        let (mut at, mut value) = (0, 0_u32);
        loop {
            let step = program[at];
            at += 1;
            match step.code {
                LOAD => value = u32::from_le_bytes(data[step.k as usize..][..4].try_into().expect("four bytes")),
                IF_EQUAL => at += usize::from(if value == step.k { step.jt } else { step.jf }),
                IF_ANY_BIT => at += usize::from(if value & step.k != 0 { step.jt } else { step.jf }),
                KEEP_BITS => value &= step.k,
                IF_AT_LEAST => at += usize::from(if value >= step.k { step.jt } else { step.jf }),
                SKIP => at += step.k as usize,
                RETURN => return step.k,
                other => panic!("unknown step {other}"),
            }
        }
    }

    #[test]
    fn calls_that_could_bypass_a_view_are_refused_and_ordinary_calls_are_allowed() {
        for (restricted, ipc) in KINDS {
            let program = program(restricted, ipc);
            for number in REFUSED {
                assert_eq!(answer(program, *number, [0; 6]), REFUSE, "{number}");
            }
            for number in [libc::SYS_read, libc::SYS_openat, libc::SYS_execve, libc::SYS_clone, libc::SYS_sendmsg] {
                assert_eq!(answer(program, number, [0; 6]), ALLOW, "{number}");
            }
        }
    }

    /// The arguments are harmless, so only the number decides.
    #[test]
    fn the_binary_search_decides_as_a_linear_list_of_the_rules() {
        for (restricted, ipc) in KINDS {
            let (program, rules) = (program(restricted, ipc), rules(restricted, ipc));
            let own = [0, 1, 0, 0, 0, 0];
            for number in 0..1000 {
                let expected = match rules.get(&number) {
                    Some(SyscallRule::Refuse) => REFUSE,
                    Some(SyscallRule::Unless(steps)) => {
                        answer(&[&steps[..], &[return_code(ALLOW)]].concat(), c_long::from(number), own)
                    }
                    None => ALLOW,
                };
                assert_eq!(answer(program, c_long::from(number), own), expected, "{number}");
            }
            assert_eq!(answer(program, 0x4000_0000, own), if cfg!(target_arch = "x86_64") { KILL } else { ALLOW });
            assert!(program.len() < 256, "{} steps", program.len());
        }
    }

    #[test]
    fn ipc_calls_are_refused_without_an_ipc_namespace() {
        for (restricted, ipc) in KINDS {
            let expected = if ipc == Ipc::Refused { REFUSE } else { ALLOW };
            for number in OF_IPC {
                assert_eq!(answer(program(restricted, ipc), *number, [0; 6]), expected, "{number} {ipc:?}");
            }
        }
    }

    #[test]
    fn a_process_can_change_only_itself() {
        let program = program(false, Ipc::Own);
        for (number, index, own) in ABOUT_OTHERS {
            // Set all arguments of this call to the caller itself.
            let mut arguments = [0_u64; 6];
            for (_, index, own) in ABOUT_OTHERS.iter().filter(|(other, ..)| other == number) {
                arguments[*index as usize] = u64::from(*own);
            }
            assert_eq!(answer(program, *number, arguments), ALLOW, "{number} {arguments:?}");
            for other in [4711, u64::from(*own) + 1, 0x1_0000_0007, u64::MAX] {
                arguments[*index as usize] = other;
                assert_eq!(answer(program, *number, arguments), REFUSE, "{number} {arguments:?}");
            }
        }
    }

    #[test]
    fn clone_creates_processes_and_threads_but_no_namespaces() {
        let program = program(false, Ipc::Own);
        let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_THREAD | libc::CLONE_SETTLS;
        for flags in [libc::SIGCHLD, libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, thread, libc::CLONE_PIDFD] {
            assert_eq!(answer(program, libc::SYS_clone, [flags as u64, 0, 0, 0, 0, 0]), ALLOW, "{flags:x}");
        }
        for flags in [0, libc::CLONE_FS, libc::CLONE_FILES] {
            assert_eq!(answer(program, libc::SYS_unshare, [flags as u64, 0, 0, 0, 0, 0]), ALLOW, "{flags:x}");
        }
        for bit in (0..32).filter(|bit| UNSHARE_NAMESPACES >> bit & 1 == 1) {
            let flags = 1_u64 << bit | libc::CLONE_FS as u64;
            assert_eq!(answer(program, libc::SYS_unshare, [flags, 0, 0, 0, 0, 0]), REFUSE, "{flags:x}");
        }
        for bit in (0..32).filter(|bit| CLONE_NAMESPACES >> bit & 1 == 1) {
            let flags = 1_u64 << bit | libc::SIGCHLD as u64;
            assert_eq!(answer(program, libc::SYS_clone, [flags, 0, 0, 0, 0, 0]), REFUSE, "{flags:x}");
        }
        assert_eq!(answer(program, libc::SYS_clone3, [0; 6]), NO_SUCH_CALL);
    }

    #[test]
    fn terminal_input_cannot_be_injected_with_any_upper_half_of_the_request() {
        let program = program(true, Ipc::Own);
        for request in [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCSTI | 0x1_0000_0000, libc::TIOCLINUX | 0xff_0000_0000]
        {
            assert_eq!(answer(program, libc::SYS_ioctl, [0, request, 0, 0, 0, 0]), REFUSE, "{request:x}");
        }
        assert_eq!(answer(program, libc::SYS_ioctl, [0, libc::TIOCGWINSZ, 0, 0, 0, 0]), ALLOW);
    }

    #[test]
    fn a_restricted_network_allows_only_connection_oriented_unix_sockets() {
        let (open, restricted) = (program(false, Ipc::Own), program(true, Ipc::Own));
        let inet = libc::AF_INET as u64;
        let cases = [
            (libc::SYS_socket, [inet, 1, 0, 0, 0, 0], REFUSE),
            (libc::SYS_socket, [libc::AF_NETLINK as u64, 3, 0, 0, 0, 0], REFUSE),
            (libc::SYS_socket, [libc::AF_UNIX as u64, 1, 0, 0, 0, 0], ALLOW),
            (libc::SYS_socketpair, [libc::AF_UNIX as u64, 1, 0, 0, 0, 0], ALLOW),
            (libc::SYS_socketpair, [libc::AF_UNIX as u64, 1 | libc::SOCK_CLOEXEC as u64, 0, 0, 0, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_UNIX as u64, libc::SOCK_SEQPACKET as u64, 0, 0, 0, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_UNIX as u64, libc::SOCK_DGRAM as u64, 0, 0, 0, 0], REFUSE),
            (
                libc::SYS_socket,
                [libc::AF_UNIX as u64, (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64, 0, 0, 0, 0],
                REFUSE,
            ),
            (libc::SYS_socket, [libc::AF_UNIX as u64, libc::SOCK_RAW as u64, 0, 0, 0, 0], REFUSE),
            (
                libc::SYS_socketpair,
                [libc::AF_UNIX as u64, libc::SOCK_DGRAM as u64 | 0xff_0000_0000, 0, 0, 0, 0],
                REFUSE,
            ),
            (libc::SYS_connect, [3, 0, 0, 0, 0, 0], REFUSE),
            (libc::SYS_sendto, [3, 1, 1, 0, 0x7000, 16], REFUSE),
            (libc::SYS_sendto, [3, 1, 1, 0, 0x7_0000_0000, 16], REFUSE),
            (libc::SYS_sendto, [3, 1, 1, 0, 0, 0], ALLOW),
        ];
        for (number, arguments, expected) in cases {
            assert_eq!(answer(restricted, number, arguments), expected, "{number} {arguments:?}");
            assert_eq!(answer(open, number, arguments), ALLOW, "{number} {arguments:?}");
        }
    }
}
