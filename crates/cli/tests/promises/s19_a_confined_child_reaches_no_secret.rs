//! S19 and S17 in a sandbox: a sandboxed child of the server's own user cannot read tokens or the memory of server, spawner and holder,
//! cannot change the audit log, cannot connect to their sockets, cannot signal them and cannot change their limits. It cannot inject
//! terminal input, trace, mount, create namespaces, or gain privileges.

use std::os::unix::{fs::chown, net::UnixDatagram};

use crate::{
    prelude::*,
    promises::{
        host_helpers::{compile, family},
        sandbox_helpers::{USERS, path, said_in, special, stage, unrestricted, workspace, workspace_with},
    },
};

/// Each output line is one attempt: its name and the error, or `done`.
const TRIES: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
static void *nothing(void *none) { return none; }

// A child that does nothing, created with flags. Its exit sends no signal, because a traced parent would stop on one.
static long child(unsigned long flags) {
    long pid = syscall(SYS_clone, flags, 0, 0, 0, 0);
    if (pid == 0) _exit(0);
    return pid < 0 ? pid : waitpid(pid, 0, __WALL);
}

static void tell(const char *what, long result) {
    printf("%s=%s\n", what, result < 0 ? strerrorname_np(errno) : "done");
}

int main(int argc, char **argv) {
    char key = '#';
    tell("type", syscall(SYS_ioctl, 0, (unsigned long) TIOCSTI, &key));
    tell("high", syscall(SYS_ioctl, 0, (unsigned long) TIOCSTI | 0xffffffff00000000ul, &key));
    tell("trace", ptrace(PTRACE_TRACEME, 0, 0, 0));
    // At a place that is not there: unconfined, as root, it would be mounted.
    tell("mount", mount("none", "/no/such/place", "tmpfs", 0, 0));
    tell("key", syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, -3, 0));
    tell("ring", syscall(SYS_io_uring_setup, 1, 0));
    // Calls on a process outside the sandbox. Each is harmless and allowed between processes of one user.
    int other = atoi(argv[2]);
    struct rlimit none = {0, 0};
    tell("limit", prlimit(other, RLIMIT_CORE, &none, 0));
    tell("upper", syscall(SYS_prlimit64, 0x100000000ul | other, RLIMIT_CORE, &none, 0));
    cpu_set_t cpus;
    sched_getaffinity(0, sizeof cpus, &cpus);
    tell("cpu", sched_setaffinity(other, sizeof cpus, &cpus));
    struct sched_param idle = {0};
    tell("class", sched_setscheduler(other, SCHED_BATCH, &idle));
    tell("param", sched_setparam(other, &idle));
    // The highest nice value: lowering it again needs a privilege.
    unsigned attributes[12] = {48, SCHED_BATCH, [4] = 19};
    tell("attr", syscall(SYS_sched_setattr, other, attributes, 0));
    tell("nice", setpriority(PRIO_PROCESS, other, 19));
    tell("disk", syscall(SYS_ioprio_set, 1, other, 2 << 13 | 7));
    tell("root", chroot("/"));
    tell("space", child(CLONE_NEWUSER));
    tell("tree", syscall(467, -100, "/", 1, 0, 0));
    tell("apart", child(0) > 0 ? unshare(CLONE_NEWUSER) : 0);
    // Allowed calls: on the process itself, and threads.
    tell("own", prlimit(0, RLIMIT_CORE, &none, 0) | sched_setaffinity(0, sizeof cpus, &cpus) | setpriority(PRIO_PROCESS, 0, 19));
    pthread_t thread;
    errno = pthread_create(&thread, 0, nothing, 0);
    tell("thread", errno ? -1 : pthread_join(thread, 0));
    tell("newer", syscall(SYS_clone3, 0, 0));
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strncpy(to.sun_path, argv[1], sizeof to.sun_path - 1);
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    tell("dial", connect(s, (struct sockaddr *) &to, sizeof to));
    // Each message may name whom it is for: a socket that lies outside of what is granted, bound by the test.
    strncpy(to.sun_path, argv[3], sizeof to.sun_path - 1);
    struct iovec text = {"leak", 4};
    struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &text, .msg_iovlen = 1};
    int pair[2] = {-1, -1};
    tell("datagram", sendmsg(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), &message, 0));
    tell("raw", sendmsg(socket(AF_UNIX, SOCK_RAW, 0), &message, 0));
    tell("both", socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    tell("pair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    printf("rights=%d\n", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    return 0;
}

"#;

/// The attempts that are refused to every sandboxed process, in order.
const REFUSED: [&str; 18] = [
    "type", "high", "trace", "mount", "key", "ring", "limit", "upper", "cpu", "class", "param", "attr", "nice", "disk",
    "root", "space", "tree", "apart",
];

#[test]
fn a_confined_child_sees_neither_token_nor_memory_and_signals_no_process_of_ours() {
    for user in USERS {
        let (server, mut client, ground) = stage(user);
        client.ok("process/start", sh("other", "exec sleep 1000"));
        let state = server.state_dir().display().to_string();
        let looks = family(&server).into_iter().map(|pid| {
            format!(
                "for f in mem environ fd/0 root/etc/passwd cwd/etc/passwd; do (exec 3</proc/{pid}/$f) 2>/dev/null && echo open {pid} $f; done; kill -0 {pid} 2>/dev/null && echo signalled {pid}\n"
            )
        });
        let looks: String = looks.collect();
        let script = format!("cat {state}/token 2>/dev/null && echo token; ls {state} 2>/dev/null; {looks}echo done");
        let policies = [
            workspace(&ground.at("work")),
            sandbox(vec![special("root", "write"), path(ground.at("outside"), "deny")], "enabled"),
            sandbox(vec![special("minimal", "read"), path(server.dir(), "write")], "restricted"),
            unrestricted(),
        ];
        for (number, policy) in policies.iter().enumerate() {
            let said = said_in(&mut client, &format!("in-{number}"), &script, Some(policy));
            assert_eq!(said, "done", "{user}: {policy}");
        }
        let said = said_in(&mut client, "out", &script, None);
        assert!(said.starts_with(server.token()) && said.contains("signalled"), "{user}: {said}");
    }
}

#[test]
fn a_confined_child_sees_neither_the_token_table_nor_the_audit_log() {
    for user in USERS {
        let builder = TestServer::builder().args(["--tokens", "{dir}/tokens.toml"]).audit();
        let server = if user == "nobody" { builder.run_by_nobody().start() } else { builder.start() };
        let (tokens, audit) = (server.dir().join("tokens.toml"), server.dir().join("audit.log"));
        fs::write(&tokens, "# nobody else").expect("write a token file");
        let owner = if user == "nobody" { NOBODY } else { 0 };
        chown(&tokens, Some(owner), Some(owner)).expect("hand it over; run this as root");
        set_mode(&tokens, 0o600);
        let (mut client, _) = server.modern_client();
        // Run each redirection in a subshell, because a failing one would end the script.
        let script = format!(
            "cat {tokens} 2>/dev/null && echo read; (echo {{}} >>{audit}) 2>/dev/null && echo appended; (: >{audit}) 2>/dev/null && echo emptied; rm -f {audit} {tokens} 2>/dev/null; echo done",
            tokens = tokens.display(),
            audit = audit.display()
        );
        let policies =
            [sandbox(vec![special("root", "read"), path(server.dir(), "write")], "restricted"), unrestricted()];
        for (number, policy) in policies.iter().enumerate() {
            let said = said_in(&mut client, &format!("in-{number}"), &script, Some(policy));
            assert_eq!(said, "done", "{user}: {policy}");
            let record = fs::read_to_string(&audit).expect("it is there");
            assert!(record.contains("process.start") && !record.lines().any(|line| line == "{}"), "{user}: {record}");
            assert!(tokens.exists(), "{user}: {policy}");
        }
        let script = format!("cat {}; cat {} >/dev/null && echo read", tokens.display(), audit.display());
        assert_eq!(said_in(&mut client, "out", &script, None), "# nobody elseread", "{user}");
    }
}

#[test]
fn a_confined_child_neither_types_nor_traces_nor_mounts_nor_dials_its_server() {
    for user in USERS {
        let (server, mut client, ground) = stage(user);
        let tries = compile(&ground.at(""), "tries", TRIES, &[]);
        let socket = server.state_dir().join("dial.sock").display().to_string();
        client.ok("process/start", sh("other", "exec sleep 1000"));
        let other = client.pid_of("other").to_string();
        let open = workspace_with(&ground.at("work"), []);
        // The socket of another program, which accepts messages from everyone.
        let (inbox, bound) = (ground.text("inbox"), UnixDatagram::bind(ground.at("inbox")).expect("bind a socket"));
        ground.open_to_all(&ground.at("inbox"));
        bound.set_nonblocking(true).expect("it need not wait");
        for (id, policy, dial) in [("shut", workspace(&ground.at("work")), "EPERM"), ("open", open, "ENOENT")] {
            let params = with(start_params(id, &[&tries, &socket, &other, &inbox]), json!({"tty": true}));
            let said = client.run_params(confined(params, &policy)).text().replace("\r\n", "\n");
            // The mount that covers the directory is empty for root, and not accessible for other users.
            let said = said.replace("dial=EACCES", "dial=ENOENT");
            let refused: String = REFUSED.map(|what| format!("{what}=EPERM\n")).concat();
            let sent = match id {
                "shut" => "datagram=EBADF\nraw=EBADF\nboth=EPERM\npair=done\n",
                _ => "datagram=done\nraw=done\nboth=done\npair=done\n",
            };
            let rest = format!("own=done\nthread=done\nnewer=ENOSYS\ndial={dial}\n{sent}rights=1\n");
            assert_eq!(said, format!("{refused}{rest}"), "{user}");
            let taken = || bound.recv(&mut [0; 9]).is_ok();
            assert_eq!((taken(), taken(), taken()), (id == "open", id == "open", false), "{user}");
        }
        // Root keeps the capabilities over files, users, signals and low ports; other users have none.
        let rights = "set -- $(grep CapEff /proc/self/status); echo $2";
        let kept = if user == "root" { "00000000000005fb" } else { "0000000000000000" };
        let policy = workspace(&ground.at("work"));
        assert_eq!(said_in(&mut client, "rights", rights, Some(&policy)), kept, "{user}");
        let said = said_in(&mut client, "free", &format!("{tries} {socket} {other} {inbox}"), None);
        let granted =
            ["trace", "dial", "limit", "upper", "cpu", "class", "param", "attr", "nice", "disk", "space", "apart"];
        for granted in granted.into_iter().chain(["own", "thread", "datagram", "raw"]) {
            assert!(said.contains(&format!("{granted}=done")), "{user}, {granted}: {said}");
        }
        assert!(said.contains("rights=0"), "{user}: {said}");
    }
}
