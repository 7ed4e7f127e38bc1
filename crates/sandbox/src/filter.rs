//! The filter of system calls that every sandboxed process gets: what could reach around a view, and with it the network.
//!
//! Numbers are compared as the kernel uses them: the request of an `ioctl`, the number of a process and the family of a socket are 32 bits,
//! whatever is in the upper half of the register.

use libc::{c_long, sock_filter};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32;
const NOT_THERE: u32 = 0x0005_0000 | libc::ENOSYS as u32;

const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const KEEP_BITS: u16 = 0x54;
const RETURN: u16 = 0x06;

/// The bits of a socket's type that say its kind; the others are flags.
const SOCKET_KINDS: u32 = 0xf;

/// Offsets in the kernel's `seccomp_data`, little endian.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// Never of use to a confined program but for reaching around what confines it.
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

/// Flags of `clone` that make a namespace, in which a process has every right, and with it ways around a view. Among the lowest eight bits
/// is the signal of its end.
const CLONE_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// Those of `unshare`: also CLONE_NEWTIME.
const UNSHARE_NAMESPACES: u32 = CLONE_NAMESPACES | 0x80;

/// Calls that change another process: its limits (no time left kills it), when and where it runs, where its memory is. Landlock knows none
/// of them. Each has one argument, or two, and the value with which it is about the caller itself.
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

/// The program that is handed to the kernel.
pub(crate) fn program(is_network_restricted: bool) -> Vec<sock_filter> {
    let mut out = Vec::with_capacity(128);
    // A call of another architecture has other numbers.
    out.extend([load(ARCH), jump(IF_EQUAL, ARCHITECTURE, 1, 0), give(KILL), load(NUMBER)]);
    if cfg!(target_arch = "x86_64") {
        // The numbers of x32.
        out.extend([jump(IF_AT_LEAST, 0x4000_0000, 0, 1), give(KILL)]);
    }
    for number in REFUSED {
        out.extend([jump(IF_EQUAL, to_u32(*number), 0, 1), give(REFUSE)]);
    }
    for (number, index, own) in ABOUT_OTHERS {
        out.extend(when(*number, &[load(argument(*index)), jump(IF_EQUAL, *own, 1, 0), give(REFUSE)]));
    }
    for (number, flags) in [(libc::SYS_clone, CLONE_NAMESPACES), (libc::SYS_unshare, UNSHARE_NAMESPACES)] {
        out.extend(when(number, &[load(argument(0)), jump(IF_ANY_BIT, flags, 0, 1), give(REFUSE)]));
    }
    // Its flags are in memory, where no filter looks. Libraries that do not find it use `clone`.
    out.extend(when(libc::SYS_clone3, &[give(NOT_THERE)]));
    // Input that is pushed into a terminal is typed by nobody.
    for request in [libc::TIOCSTI, libc::TIOCLINUX] {
        let steps = [load(argument(1)), jump(IF_EQUAL, request as u32, 0, 1), give(REFUSE)];
        out.extend(when(libc::SYS_ioctl, &steps));
    }
    if is_network_restricted {
        out.extend(when(libc::SYS_connect, &[give(REFUSE)]));
        for socket in [libc::SYS_socket, libc::SYS_socketpair] {
            let steps = [load(argument(0)), jump(IF_EQUAL, libc::AF_UNIX as u32, 1, 0), give(REFUSE)];
            out.extend(when(socket, &steps));
            // A datagram needs no connection: each may have an address of its own, which is in memory. Raw ones are datagrams by another
            // name, so those of the kinds that are connected are all that is left.
            let mut steps = vec![load(argument(1)), keep(SOCKET_KINDS)];
            steps.push(jump(IF_EQUAL, libc::SOCK_STREAM as u32, 2, 0));
            steps.extend([jump(IF_EQUAL, libc::SOCK_SEQPACKET as u32, 1, 0), give(REFUSE)]);
            out.extend(when(socket, &steps));
        }
        // To whom a message goes is named by an address, or by a connection, which cannot be made.
        for half in [argument(4), argument(4) + 4] {
            out.extend(when(libc::SYS_sendto, &[load(half), jump(IF_EQUAL, 0, 1, 0), give(REFUSE)]));
        }
    }
    out.push(give(ALLOW));
    out
}

/// Steps for one call alone. What it leaves to be allowed goes on behind them.
fn when(number: c_long, steps: &[sock_filter]) -> Vec<sock_filter> {
    // The number is loaded again where an argument may have been.
    let mut out = vec![load(NUMBER), jump(IF_EQUAL, to_u32(number), 0, steps.len() as u8)];
    out.extend(steps);
    out
}

fn to_u32(number: c_long) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

const fn load(offset: u32) -> sock_filter {
    sock_filter { code: LOAD, jt: 0, jf: 0, k: offset }
}

const fn keep(bits: u32) -> sock_filter {
    sock_filter { code: KEEP_BITS, jt: 0, jf: 0, k: bits }
}

const fn jump(code: u16, value: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code, jt: yes, jf: no, k: value }
}

const fn give(answer: u32) -> sock_filter {
    sock_filter { code: RETURN, jt: 0, jf: 0, k: answer }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
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
                RETURN => return step.k,
                other => panic!("unknown step {other}"),
            }
        }
    }

    #[test]
    fn what_reaches_around_a_view_is_refused_and_the_rest_is_not() {
        for restricted in [false, true] {
            let program = program(restricted);
            for number in REFUSED {
                assert_eq!(answer(&program, *number, [0; 6]), REFUSE, "{number}");
            }
            for number in [libc::SYS_read, libc::SYS_openat, libc::SYS_execve, libc::SYS_clone, libc::SYS_sendmsg] {
                assert_eq!(answer(&program, number, [0; 6]), ALLOW, "{number}");
            }
        }
    }

    #[test]
    fn a_process_changes_itself_and_no_other() {
        let program = program(false);
        for (number, index, own) in ABOUT_OTHERS {
            // The other argument of those that have two.
            let mut arguments = [0_u64; 6];
            for (_, index, own) in ABOUT_OTHERS.iter().filter(|(other, ..)| other == number) {
                arguments[*index as usize] = u64::from(*own);
            }
            assert_eq!(answer(&program, *number, arguments), ALLOW, "{number} {arguments:?}");
            for other in [4711, u64::from(*own) + 1, 0x1_0000_0007, u64::MAX] {
                arguments[*index as usize] = other;
                assert_eq!(answer(&program, *number, arguments), REFUSE, "{number} {arguments:?}");
            }
        }
    }

    #[test]
    fn processes_and_threads_are_made_and_no_namespaces() {
        let program = program(false);
        let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_THREAD | libc::CLONE_SETTLS;
        for flags in [libc::SIGCHLD, libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, thread, libc::CLONE_PIDFD] {
            assert_eq!(answer(&program, libc::SYS_clone, [flags as u64, 0, 0, 0, 0, 0]), ALLOW, "{flags:x}");
        }
        for flags in [0, libc::CLONE_FS, libc::CLONE_FILES] {
            assert_eq!(answer(&program, libc::SYS_unshare, [flags as u64, 0, 0, 0, 0, 0]), ALLOW, "{flags:x}");
        }
        for bit in (0..32).filter(|bit| UNSHARE_NAMESPACES >> bit & 1 == 1) {
            let flags = 1_u64 << bit | libc::CLONE_FS as u64;
            assert_eq!(answer(&program, libc::SYS_unshare, [flags, 0, 0, 0, 0, 0]), REFUSE, "{flags:x}");
        }
        for bit in (0..32).filter(|bit| CLONE_NAMESPACES >> bit & 1 == 1) {
            let flags = 1_u64 << bit | libc::SIGCHLD as u64;
            assert_eq!(answer(&program, libc::SYS_clone, [flags, 0, 0, 0, 0, 0]), REFUSE, "{flags:x}");
        }
        assert_eq!(answer(&program, libc::SYS_clone3, [0; 6]), NOT_THERE);
    }

    #[test]
    fn terminal_input_cannot_be_pushed_whatever_the_upper_half_says() {
        let program = program(true);
        for request in [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCSTI | 0x1_0000_0000, libc::TIOCLINUX | 0xff_0000_0000]
        {
            assert_eq!(answer(&program, libc::SYS_ioctl, [0, request, 0, 0, 0, 0]), REFUSE, "{request:x}");
        }
        assert_eq!(answer(&program, libc::SYS_ioctl, [0, libc::TIOCGWINSZ, 0, 0, 0, 0]), ALLOW);
    }

    #[test]
    fn a_restricted_network_leaves_sockets_of_this_host_and_no_way_to_connect_them() {
        let (open, restricted) = (program(false), program(true));
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
            assert_eq!(answer(&restricted, number, arguments), expected, "{number} {arguments:?}");
            assert_eq!(answer(&open, number, arguments), ALLOW, "{number} {arguments:?}");
        }
    }
}
