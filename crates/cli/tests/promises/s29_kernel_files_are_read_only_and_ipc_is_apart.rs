//! S29: a sandboxed process cannot write to `/proc` or `/sys`, even if its files are unrestricted, and it cannot reach System V IPC objects
//! or POSIX message queues of processes outside.

use crate::{
    prelude::*,
    promises::sandbox_helpers::{USERS, path, said_in, server_of, special, unrestricted},
};

/// Numbers of two system calls for which Perl has no function.
const MQ_OPEN: u32 = if cfg!(target_arch = "x86_64") { 240 } else { 180 };

const MQ_UNLINK: u32 = MQ_OPEN + 1;

/// One policy for each way in which a view is built.
fn policies() -> Vec<(&'static str, Value)> {
    let with_kernel = |first| sandbox(vec![first, path("/proc", "write"), path("/sys", "write")], "enabled");
    vec![
        ("unrestricted files", unrestricted()),
        ("writable root", sandbox(vec![special("root", "write")], "restricted")),
        ("writable root with an exception", sandbox(vec![special("root", "write"), path("/boot", "deny")], "enabled")),
        ("readable root, writable /proc and /sys", with_kernel(special("root", "read"))),
        ("empty tree, writable /proc and /sys", with_kernel(special("minimal", "read"))),
    ]
}

/// Kernel files that root may open for writing.
fn kernel_files(server: u32) -> Vec<String> {
    let mut files = vec![
        "/proc/self/oom_score_adj".to_owned(),
        format!("/proc/{server}/oom_score_adj"),
        "/proc/sys/kernel/core_pattern".to_owned(),
        "/proc/sys/vm/overcommit_memory".to_owned(),
    ];
    // These depend on the kernel configuration.
    let optional = ["/sys/power/state", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/fs/cgroup/cgroup.procs"];
    files.extend(optional.into_iter().filter(|file| Path::new(file).exists()).map(str::to_owned));
    files
}

/// Opens each file for appending without writing, and prints the names of those that could be opened.
fn opened(files: &[String]) -> String {
    let open = |file: &String| format!("(: >> {file}) 2>/dev/null && echo {file}");
    files.iter().map(open).chain(["true".to_owned()]).collect::<Vec<_>>().join("; ")
}

/// A server run by one of the users, and a client of it.
fn stage(user: &str) -> (TestServer, Client) {
    let server = server_of(user);
    let (client, _) = server.modern_client();
    (server, client)
}

#[test]
fn no_confined_process_opens_a_kernel_file_for_writing() {
    for user in USERS {
        let (server, mut client) = stage(user);
        let files = kernel_files(server.pid());
        // Without a sandbox the files can be opened, so a refusal below comes from the sandbox.
        let free = client.script("free", &opened(&files));
        if user == "root" {
            assert_eq!(free, files.join("\n"));
        }
        assert!(free.contains("/proc/self/oom_score_adj"), "{user}: {free}");
        for (name, policy) in policies() {
            let found = said_in(&mut client, name, &opened(&files), Some(&policy));
            assert_eq!(found, "", "{user}, {name}");
            let id = format!("{name}, own file");
            let why = said_in(&mut client, &id, "exec 2>&1; echo 0 > /proc/self/oom_score_adj", Some(&policy));
            assert!(why.contains("Read-only file system"), "{user}, {name}: {why}");
        }
    }
}

#[test]
fn kernel_files_stay_readable_and_streams_stay_writable() {
    for user in USERS {
        let (_server, mut client) = stage(user);
        for (name, policy) in policies() {
            // The links in `/proc/self/fd` lead to files on other mounts.
            let script = "cat /proc/sys/kernel/ostype; echo out > /proc/self/fd/1; echo err 2>&1 >&2 > /dev/stderr; test -r /sys/kernel && echo sys";
            let said = said_in(&mut client, name, &format!("exec 2>&1; {script}"), Some(&policy));
            assert_eq!(said, "Linux\nout\nerr\nsys", "{user}, {name}");
        }
    }
}

#[test]
fn a_confined_process_cannot_make_the_kernel_s_files_writable_again() {
    for user in USERS {
        let (server, mut client) = stage(user);
        let pid = server.pid();
        let target = "proc/sys/kernel/core_pattern";
        for (name, policy) in policies() {
            let script = format!(
                "exec 2>/dev/null; for mount in /proc /sys; do mount -o remount,rw $mount && echo remounted $mount
                mount -o remount,bind,rw $mount && echo remounted bind $mount; umount -l $mount && echo unmounted $mount; done
                mount -t proc proc /tmp && echo mounted; unshare -rm true && echo unshared; nsenter -t {pid} -m true && echo entered
                top=root; for process in 1 {pid} $PPID; do (: >> /proc/$process/$top/{target}) && echo through $process; done
                (: >> /{target}) && echo written; true"
            );
            assert_eq!(said_in(&mut client, name, &script, Some(&policy)), "", "{user}, {name}");
        }
    }
}

/// A server in its own mount namespace with additional mounts of `proc`, `sysfs` and `mqueue` in its private directory.
fn server_with_mounts() -> TestServer {
    let mounts = "for kind in proc sysfs mqueue; do mkdir \"$TMPDIR/$kind\" && mount -t $kind $kind \"$TMPDIR/$kind\" || exit 1; done; \
        chmod 755 \"$TMPDIR\"; exec \"$0\" \"$@\"";
    TestServer::builder()
        .after(&format!("exec unshare -m --propagation private sh -c '{mounts}' \"$0\" \"$@\""))
        .start()
}

#[test]
fn a_second_mount_of_a_kernel_file_system_is_read_only_too() {
    let server = server_with_mounts();
    let (mut client, _) = server.modern_client();
    let dir = server.state_dir().parent().expect("the private directory").to_owned();
    let names = ["proc/sys/kernel/core_pattern", "sysfs/kernel/mm/transparent_hugepage/enabled", "sysfs/power/state"];
    let files = names.map(|name| dir.join(name).display().to_string());
    let free = client.script("free", &opened(&files));
    assert!(free.contains(&files[0]), "{free}");
    for (name, policy) in policies() {
        assert_eq!(said_in(&mut client, name, &opened(&files), Some(&policy)), "", "{name}");
    }
    let granted = sandbox(vec![special("minimal", "read"), path(&dir, "write")], "enabled");
    assert_eq!(said_in(&mut client, "granted", &opened(&files), Some(&granted)), "");
}

/// IPC objects of a process outside of every sandbox that every user may access. Dropping this removes them.
struct Outside {
    key: u32,
    queue: String,
}

/// Runs a Perl program outside of the server.
fn perl(program: &str) -> String {
    let output = Command::new("perl").args(["-e", program]).output().expect("run perl");
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

impl Outside {
    fn new() -> Self {
        static COUNTER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let outside = Self {
            key: 0x4000_0000 | (std::process::id() & 0xff_ffff) << 4 | count,
            queue: format!("exec-server-test-{}-{count}", std::process::id()),
        };
        let Self { key, queue } = &outside;
        // IPC_CREAT is 01000, O_RDWR | O_CREAT is 0102.
        let made = perl(&format!(
            "umask 0; my $shm = shmget({key}, 4096, 01666) // die; shmwrite($shm, 'secret', 0, 6) or die;
            semget({key}, 1, 01666) // die; my $msg = msgget({key}, 01666) // die; msgsnd($msg, pack('l! a*', 1, 'secret'), 0) or die;
            my $name = \"{queue}\\0\"; syscall({}, $name, 0102, 0666, 0) >= 0 or die; print 'made'",
            MQ_OPEN
        ));
        assert_eq!(made, "made");
        outside
    }

    /// A shell command that prints the name of each object that it can reach.
    fn reached(&self) -> String {
        let Self { key, queue } = self;
        let numbers = perl(&format!("print join ',', shmget({key}, 0, 0), semget({key}, 0, 0), msgget({key}, 0)"));
        let [shm, sem, msg] = numbers.split(',').collect::<Vec<_>>()[..] else { panic!("{numbers}") };
        format!(
            "perl -e 'print \"shm \" if defined shmget({key}, 0, 0); print \"sem \" if defined semget({key}, 0, 0);
            print \"msg \" if defined msgget({key}, 0); my $data; print \"shm-by-id \" if shmread({shm}, $data, 0, 6);
            print \"sem-by-id \" if defined semctl({sem}, 0, 12, 0); print \"msg-by-id \" if msgsnd({msg}, pack(\"l! a*\", 2, \"x\"), 04000);
            my $name = \"{queue}\\0\"; print \"mq \" if syscall({}, $name, 0, 0, 0) >= 0'",
            MQ_OPEN
        )
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let Self { key, queue } = self;
        let program = format!(
            "shmctl(shmget({key}, 0, 0), 0, 0); semctl(semget({key}, 0, 0), 0, 0, 0); msgctl(msgget({key}, 0), 0, 0);
            my $name = \"{queue}\\0\"; syscall({}, $name)",
            MQ_UNLINK
        );
        Command::new("perl").args(["-e", &program]).status().ok();
    }
}

#[test]
fn ipc_objects_of_outside_processes_are_out_of_reach() {
    let outside = Outside::new();
    let reached = outside.reached();
    for user in USERS {
        let (_server, mut client) = stage(user);
        let all = "shm sem msg shm-by-id sem-by-id msg-by-id mq";
        assert_eq!(client.script("free", &reached), all, "{user}: the test can reach them");
        for (name, policy) in policies() {
            assert_eq!(said_in(&mut client, name, &reached, Some(&policy)), "", "{user}, {name}");
        }
    }
}

#[test]
fn a_confined_process_and_its_children_share_ipc_that_no_other_start_sees() {
    let key = 0x5000_0000 | std::process::id();
    for user in USERS {
        let (_server, mut client) = stage(user);
        let (_, policy) = policies().remove(1);
        let make = format!(
            "perl -e 'shmwrite(shmget({key}, 64, 01600), \"shared\", 0, 6) or die $!'; \
            perl -e 'shmread(shmget({key}, 0, 0), my $data, 0, 6) or die $!; print $data'"
        );
        assert_eq!(said_in(&mut client, "make", &make, Some(&policy)), "shared", "{user}");
        let look = format!("perl -e 'print defined shmget({key}, 0, 0) ? \"there\" : \"not there: $!\"'");
        let found = said_in(&mut client, "look", &look, Some(&policy));
        assert_eq!(found, "not there: No such file or directory", "{user}");
    }
}

#[test]
fn a_mount_of_the_host_s_message_queues_is_empty() {
    let outside = Outside::new();
    let server = server_with_mounts();
    let (mut client, _) = server.modern_client();
    let mount = server.state_dir().parent().expect("the private directory").join("mqueue");
    let look = format!("ls {0}; cat {0}/{1} 2>/dev/null; rm -f {0}/{1} 2>/dev/null", mount.display(), outside.queue);
    let free = client.script("free", &format!("ls {}", mount.display()));
    assert!(free.contains(&outside.queue), "{free}");
    for (name, policy) in policies() {
        let found = said_in(&mut client, name, &format!("{look}; true"), Some(&policy));
        assert_eq!(found, "", "{name}");
    }
    let granted = sandbox(vec![special("root", "read"), path(&mount, "write")], "enabled");
    assert_eq!(said_in(&mut client, "granted", &format!("{look}; true"), Some(&granted)), "");
    let free = client.script("still", &format!("ls {}", mount.display()));
    assert!(free.contains(&outside.queue), "{free}");
}
