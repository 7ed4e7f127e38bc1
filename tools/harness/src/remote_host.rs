//! The far side: a real sshd on loopback with its own home, and an ssh configuration that finds it.
//!
//! Keys, configuration, home and state are in one directory. ssh takes the user's home from the passwd database and not from `HOME`, so a
//! small `ssh` wrapper comes before the real one in `PATH` and adds `-F`. For the same reason the sshd sets `HOME` and changes to it, which
//! a login otherwise does itself. Dropping this ends everything that runs on the far side.

use std::{
    ffi::OsStr,
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use exec_server_workspace::{packages, processes};
use rustix::process::Signal;

use crate::{
    environment::{self, Environment, wait_until},
    server::last_lines,
};

/// Another process may take the port between our check and sshd's bind.
const PORTS_TRIED: u32 = 5;

/// The empty directory that sshd requires when root starts it.
const EMPTY_FOLDER: &str = "/run/sshd";

/// The address of the host `plain`: the same sshd and the same home, without user files that slow a shell, and without changing to the
/// home.
const PLAIN: &str = "127.0.0.2";

/// Where systems have the SFTP server that `scp` needs. The one inside sshd would not pass our forced command.
const SFTP_SERVERS: [&str; 3] =
    ["/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/libexec/sftp-server"];

/// A host called `box`, and host names for connections that fail.
pub struct RemoteHost<'a> {
    world: &'a Environment,
    folder: PathBuf,
    pub port: u16,
    /// A port on which nothing listens.
    pub closed_port: u16,
    pub user: String,
    sshd: Child,
    /// Whether we created sshd's empty directory.
    made_empty_folder: bool,
}

impl<'a> RemoteHost<'a> {
    /// Starts sshd in a new directory.
    pub fn start(world: &'a Environment, name: &str) -> Result<Self> {
        let folder = world.folder(name)?;
        for name in ["home", "bin"] {
            fs::create_dir(folder.join(name))?;
        }
        for name in ["host_key", "key", "other_key"] {
            let mut keygen = world.command("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "interop", "-f"]).arg(folder.join(name));
            environment::success_of(&mut keygen, Duration::from_secs(20))?;
        }
        fs::copy(folder.join("key.pub"), folder.join("authorized"))?;
        let host_key = fs::read_to_string(folder.join("host_key.pub"))?;
        fs::write(folder.join("known"), format!("box {host_key}"))?;
        fs::write(folder.join("known_empty"), "")?;
        let user = String::from_utf8(environment::success_of(world.command("id").arg("-un"), Duration::from_secs(5))?)?;
        let user = user.trim_end().to_owned();
        let made_empty_folder = rustix::process::geteuid().is_root() && fs::create_dir(EMPTY_FOLDER).is_ok();
        let (sshd, port) = start_sshd(world, &folder, &user)?;
        let host = Self { world, folder, port, closed_port: unused_port()?, user, sshd, made_empty_folder };
        host.write_client()?;
        let output = environment::output_of(host.command("ssh").args(["box", "pwd"]), Duration::from_secs(20))?;
        let is_home = String::from_utf8_lossy(&output.stdout).trim_end() == host.home().to_string_lossy();
        ensure!(is_home, "`ssh box pwd` {}; sshd says: {}", environment::describe(&output), host.log_tail());
        Ok(host)
    }

    /// The home on the far side.
    pub fn home(&self) -> PathBuf {
        self.folder.join("home")
    }

    /// Installs the program where the installer puts it.
    pub fn install(&self) -> Result<()> {
        let bin = self.home().join(".local/bin");
        fs::create_dir_all(&bin)?;
        fs::copy(&self.world.binary, bin.join("exec-server"))?;
        Ok(())
    }

    /// A command on the near side whose `ssh` knows the far one. This works for `ssh` itself too, because programs are looked up in the
    /// child's `PATH`.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.world.command(program);
        command.env("PATH", self.world.path_with(Some(&self.folder.join("bin"))));
        command
    }

    /// The real `ssh` to the host `plain`, with these options.
    pub fn plain(&self, options: &[&str]) -> Result<Command> {
        let mut command = self.world.command(packages::find("ssh").context("find `ssh`")?);
        command.arg("-F").arg(self.folder.join("ssh_config")).args(options).arg("plain");
        Ok(command)
    }

    /// The address of the host `plain`, for a proxy in front of it.
    pub fn plain_address(&self) -> Result<SocketAddr> {
        Ok(SocketAddr::new(PLAIN.parse()?, self.port))
    }

    /// Options of ssh, scp and rsync's ssh that connect to `plain` through a proxy.
    pub fn through(proxy: SocketAddr) -> [String; 4] {
        ["-o".to_owned(), format!("HostName={}", proxy.ip()), "-o".to_owned(), format!("Port={}", proxy.port())]
    }

    /// `exec-server` on the near side.
    pub fn exec_server(&self, args: &[&str]) -> Command {
        let mut command = self.command(&self.world.binary);
        command.args(args);
        command
    }

    /// Every sshd process that serves a connection: children of the listener, and their children.
    pub fn sessions(&self) -> Vec<u32> {
        let direct = processes::children_of(self.sshd.id());
        let below = direct.iter().flat_map(|pid| processes::children_of(*pid));
        let is_sshd = |pid: &u32| processes::comm(*pid).is_some_and(|name| name.starts_with("sshd"));
        below.collect::<Vec<_>>().into_iter().chain(direct).filter(is_sshd).collect()
    }

    /// The last lines of sshd's log.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.folder.join("sshd.log")).unwrap_or_default();
        last_lines(&text, 8).join(" | ")
    }

    /// Stops sshd; fails if a process on the far side is left.
    pub fn stop(mut self) -> Result<()> {
        // All sessions end with their clients, which have ended.
        let sessions = || self.sessions().len();
        let ended = wait_until("the sessions of sshd have ended", Duration::from_secs(10), || sessions() == 0);
        self.sshd.kill()?;
        self.sshd.wait()?;
        ended?;
        environment::end_servers(&self.folder).context("on the far side")
    }

    fn write_client(&self) -> Result<()> {
        let file = |name: &str| self.folder.join(name).display().to_string();
        // The first value counts, so common settings come last; but identity files add up.
        let config = format!(
            "Host stranger\n  UserKnownHostsFile {known_empty}\n\
             Host locked\n  IdentityFile {other_key}\n\
             Host closed\n  Port {closed_port}\n\
             Host plain\n  HostName {PLAIN}\n\
             Host box plain stranger locked closed\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n\
             Host * !locked\n  IdentityFile {key}\n\
             Host *\n  IdentitiesOnly yes\n  IdentityAgent none\n  HostKeyAlias box\n\
             \x20 UserKnownHostsFile {known}\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n\
             \x20 UpdateHostKeys no\n  PasswordAuthentication no\n  KbdInteractiveAuthentication no\n  LogLevel ERROR\n",
            known_empty = file("known_empty"),
            other_key = file("other_key"),
            closed_port = self.closed_port,
            port = self.port,
            user = self.user,
            key = file("key"),
            known = file("known"),
        );
        fs::write(self.folder.join("ssh_config"), config)?;
        for program in ["ssh", "scp"] {
            let real = packages::find(program).with_context(|| format!("find `{program}`"))?;
            let text = format!("#!/bin/sh\nexec {} -F {} \"$@\"\n", real.display(), file("ssh_config"));
            let path = self.folder.join("bin").join(program);
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }
}

impl Drop for RemoteHost<'_> {
    fn drop(&mut self) {
        for pid in self.sessions().into_iter().chain(processes::with_path(&self.folder)) {
            processes::kill(pid, Signal::KILL);
        }
        self.sshd.kill().ok(); // Already ended if `stop` was called.
        self.sshd.wait().ok();
        if self.made_empty_folder {
            fs::remove_dir(EMPTY_FOLDER).ok(); // Another sshd may use it by now.
        }
    }
}

fn start_sshd(world: &Environment, folder: &Path, user: &str) -> Result<(Child, u16)> {
    let program = packages::find("sshd").context("find `sshd`")?;
    let log = folder.join("sshd.log");
    for _ in 0..PORTS_TRIED {
        let port = unused_port()?;
        write_server(folder, user, port)?;
        // Use the full path, because sshd re-executes itself for each connection.
        let mut child = world
            .command(&program)
            .args(["-D", "-e", "-f"])
            .arg(folder.join("sshd_config"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .spawn()
            .with_context(|| format!("start `{}`", program.display()))?;
        let mut is_up = false;
        wait_until("sshd listens or has ended", Duration::from_secs(10), || {
            is_up = TcpStream::connect(("127.0.0.1", port)).is_ok();
            is_up || !matches!(child.try_wait(), Ok(None))
        })?;
        if is_up && child.try_wait()?.is_none() {
            return Ok((child, port));
        }
        child.kill().ok(); // It has ended by itself.
        child.wait()?;
    }
    bail!("sshd does not start: {}", fs::read_to_string(&log)?.trim_end())
}

fn write_server(folder: &Path, user: &str, port: u16) -> Result<()> {
    let file = |name: &str| folder.join(name).display().to_string();
    // Without PAM, sshd refuses an account with a locked password, even with a valid key.
    let shadow = fs::read_to_string("/etc/shadow").unwrap_or_default();
    let is_locked = shadow.lines().any(|line| line.starts_with(&format!("{user}:!")));
    let config = format!(
        "Port {port}\nListenAddress 127.0.0.1\nListenAddress {PLAIN}\nHostKey {host_key}\nPidFile none\nAuthorizedKeysFile {authorized}\n\
         StrictModes no\nUsePAM {pam}\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n\
         KbdInteractiveAuthentication no\nUseDNS no\nPrintMotd no\nPrintLastLog no\nLogLevel VERBOSE\nMaxStartups 100\n\
         SetEnv HOME={home}\n{sftp}\
         Match LocalAddress 127.0.0.1\n  ForceCommand cd && exec sh -c \"$SSH_ORIGINAL_COMMAND\"\n",
        host_key = file("host_key"),
        authorized = file("authorized"),
        pam = if is_locked { "yes" } else { "no" },
        home = file("home"),
        sftp = SFTP_SERVERS
            .iter()
            .find(|path| Path::new(path).exists())
            .map_or_else(String::new, |path| format!("Subsystem sftp {path}\n")),
    );
    Ok(fs::write(folder.join("sshd_config"), config)?)
}

/// A port on which nothing listens at the moment.
fn unused_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
