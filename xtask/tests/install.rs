//! `install.sh` with packages made for the test, as the current user and, if that is root, also as the user `nobody`.
//!
//! The program inside is a copy of bash: it runs on this machine, accepts `--version` and can wait. `cargo xtask dist` checks the real
//! program after an install.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test; the script is started as a user would")]

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

/// Of the user without rights.
const NOBODY: u32 = 65534;

const PROGRAM: &str = "bin/exec-server";
const PAGE: &str = "share/man/man1/exec-server.1";

/// All that a package installs; the pages of commands may be more or fewer.
const INSTALLED: [&str; 12] = [
    PROGRAM,
    "share/bash-completion/completions/exec-server",
    "share/doc/exec-server/CHANGELOG.md",
    "share/doc/exec-server/LICENSE-APACHE",
    "share/doc/exec-server/LICENSE-MIT",
    "share/doc/exec-server/PROTOCOL.md",
    "share/doc/exec-server/README.md",
    "share/doc/exec-server/THIRD-PARTY.md",
    "share/fish/vendor_completions.d/exec-server.fish",
    "share/man/man1/exec-server-run.1",
    PAGE,
    "share/zsh/site-functions/_exec-server",
];

/// A package in all its forms, and a home for one user.
struct Desk {
    folder: TempDir,
    user: Option<u32>,
}

impl Desk {
    /// One for each user that the tests can be.
    fn each() -> Vec<Self> {
        let nobody = rustix::process::getuid().is_root().then_some(Some(NOBODY));
        [None].into_iter().chain(nobody).map(Self::new).collect()
    }

    /// `tree` is the unpacked package, `dist` what `cargo xtask dist` makes, `home` and `tmp` are the user's.
    fn new(user: Option<u32>) -> Self {
        // In the shared temporary directory: the user `nobody` cannot enter that of a CI run.
        let folder = tempfile::Builder::new().prefix("exec-server-install-test-").tempdir_in("/tmp").unwrap();
        let desk = Self { folder, user };
        fs::set_permissions(desk.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        for name in INSTALLED {
            desk.write(&format!("tree/{name}"), name.as_bytes());
        }
        desk.write("tree/bin/exec-server", &fs::read(bash()).unwrap());
        desk.write("tree/install.sh", &fs::read(script()).unwrap());
        desk.sum_and_pack();
        for name in ["home", "tmp"] {
            fs::create_dir(desk.path(name)).unwrap();
            chown(desk.path(name), desk.user, desk.user).unwrap();
        }
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), content).unwrap();
    }

    /// Where the package lies in `dist`.
    fn package(&self) -> String {
        format!("dist/exec-server-1.2.3-{}-unknown-linux-gnu.tar.gz", std::env::consts::ARCH)
    }

    /// Makes the sums and `dist` anew from `tree`.
    fn sum_and_pack(&self) {
        let pack = "cd tree && rm -f SHA256SUMS && find . -type f | sed 's,^./,,' | xargs sha256sum > ../sums && \
                    mv ../sums SHA256SUMS && cd .. && mkdir -p dist && cp tree/install.sh tree/bin/exec-server dist && \
                    tar cf - tree | gzip -1 > \"$0\" && cd dist && rm -f SHA256SUMS && sha256sum * > ../sums && mv ../sums SHA256SUMS";
        let status = Command::new("sh").args(["-euc", pack, &self.package()]).current_dir(self.path("")).status();
        assert!(status.unwrap().success());
    }

    /// The script with paths from the desk's folder, as this user and with nothing else in the environment.
    fn command(&self, shell: &str, script: &str, args: &[&str]) -> Command {
        let mut command = Command::new(shell);
        command.arg(script).args(args).current_dir(self.path("")).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("HOME", self.path("home")).env("TMPDIR", self.path("tmp"));
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    fn run(&self, script: &str, args: &[&str]) -> Said {
        self.finish(&mut self.command("sh", script, args))
    }

    /// Runs to the end; the script leaves nothing in the temporary folder.
    fn finish(&self, command: &mut Command) -> Said {
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(files(&self.path("tmp")), BTreeMap::new());
        Said::new(&output)
    }

    /// Names and modes of what is installed.
    fn installed(&self) -> BTreeMap<String, u32> {
        files(&self.path("home/.local"))
    }

    fn assert_refused(&self, said: &Said, why: &str) {
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.err.contains(why), "{said:?}");
        assert_eq!(fs::read_dir(self.path("home")).unwrap().count(), 0, "{said:?}");
    }
}

/// How a run ended.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn new(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    fn assert_done(&self) {
        assert_eq!(self.code, Some(0), "{self:?}");
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../install.sh")
}

/// The file of a program, where it is installed.
fn which(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/bin", "/usr/local/bin"].iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
}

fn bash() -> PathBuf {
    which("bash").expect("the tests need bash")
}

/// Every file below a folder with its mode.
fn files(folder: &Path) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(folder).unwrap().display().to_string();
                found.insert(name, entry.metadata().unwrap().mode() & 0o7777);
            }
        }
    }
    found
}

fn whole() -> BTreeMap<String, u32> {
    let mode = |name| if name == PROGRAM { 0o755 } else { 0o644 };
    INSTALLED.iter().map(|name| ((*name).to_owned(), mode(*name))).collect()
}

#[test]
fn every_form_of_the_package_installs_and_uninstalls_without_a_trace() {
    for desk in Desk::each() {
        let package = desk.package();
        let alone = [(PROGRAM.to_owned(), 0o755)].into();
        let forms = [
            ("tree/install.sh", None, whole()),
            ("dist/install.sh", None, whole()),
            ("dist/install.sh", Some("tree"), whole()),
            ("tree/install.sh", Some(&*package), whole()),
            ("dist/install.sh", Some("dist/exec-server"), alone),
        ];
        for (script, source, expected) in forms {
            for _again in 0..2 {
                let said = desk.run(script, source.as_slice());
                said.assert_done();
                assert!(said.out.starts_with("installed "), "{said:?}");
                assert_eq!(desk.installed(), expected, "{script} {source:?}");
            }
            desk.run(script, &["--uninstall"]).assert_done();
            assert_eq!(fs::read_dir(desk.path("home/.local")).unwrap().count(), 0);
        }
        let said = desk.run("dist/install.sh", &["--uninstall"]);
        said.assert_done();
        assert!(said.err.contains("nothing of exec-server is installed"), "{said:?}");
    }
}

#[test]
fn every_shell_at_hand_can_run_it_and_umask_does_not_matter() {
    let desk = Desk::new(None);
    let posix = which("bash").map(|bash| format!("exec {} --posix \"$0\"", bash.display()));
    let shells = [which("dash"), which("busybox"), which("ksh")].into_iter().flatten();
    let shells = shells.map(|shell| match shell.file_name().is_some_and(|name| name == "busybox") {
        true => format!("exec {} sh \"$0\"", shell.display()),
        false => format!("exec {} \"$0\"", shell.display()),
    });
    for line in shells.chain(posix) {
        let line = format!("umask 077; {line}");
        desk.finish(&mut desk.command("sh", "-euc", &[&line, "dist/install.sh"])).assert_done();
        assert_eq!(desk.installed(), whole(), "{line}");
        desk.run("dist/install.sh", &["--uninstall"]).assert_done();
    }
}

#[test]
fn a_damaged_file_is_refused_before_anything_is_written() {
    for desk in Desk::each() {
        for name in [PAGE, PROGRAM] {
            let name = format!("tree/{name}");
            let good = fs::read(desk.path(&name)).unwrap();
            let mut bad = good.clone();
            *bad.last_mut().unwrap() ^= 1;
            desk.write(&name, &bad);
            desk.assert_refused(&desk.run("tree/install.sh", &[]), "is damaged");
            desk.write(&name, &good[..good.len() - 1]);
            desk.assert_refused(&desk.run("tree/install.sh", &[]), "is damaged");
            desk.write(&name, &good);
        }
        let package = fs::read(desk.path(&desk.package())).unwrap();
        desk.write(&desk.package(), &package[..package.len() / 2]);
        desk.assert_refused(&desk.run("dist/install.sh", &[]), "is damaged");
        // Without sums beside it, the package is what shows the damage.
        desk.write("alone.tar.gz", &package[..package.len() / 2]);
        desk.assert_refused(&desk.run("dist/install.sh", &["alone.tar.gz"]), "cannot be unpacked");
        desk.write("dist/exec-server", b"no program");
        desk.assert_refused(&desk.run("dist/install.sh", &["dist/exec-server"]), "is damaged");
    }
}

#[test]
fn files_without_a_checksum_are_refused() {
    for desk in Desk::each() {
        let sums = fs::read_to_string(desk.path("tree/SHA256SUMS")).unwrap();
        let fewer: String = sums.lines().filter(|line| !line.ends_with(PAGE)).map(|line| format!("{line}\n")).collect();
        desk.write("tree/SHA256SUMS", fewer.as_bytes());
        desk.assert_refused(&desk.run("tree/install.sh", &[]), "does not list");
        fs::remove_file(desk.path("tree/SHA256SUMS")).unwrap();
        desk.assert_refused(&desk.run("tree/install.sh", &[]), "no SHA256SUMS");
        // A link could lead to a file that is not in the package.
        desk.sum_and_pack();
        fs::rename(desk.path("tree").join(PAGE), desk.path("elsewhere")).unwrap();
        std::os::unix::fs::symlink(desk.path("elsewhere"), desk.path("tree").join(PAGE)).unwrap();
        desk.assert_refused(&desk.run("tree/install.sh", &[]), "no file `share/man/man1/exec-server.1`");
        desk.assert_refused(&desk.run("tree/install.sh", &["nowhere"]), "no such file or folder");
        desk.assert_refused(&desk.run("tree/install.sh", &["home"]), "neither a package nor the program");
    }
}

#[test]
fn a_program_for_another_machine_is_refused() {
    let (mine, other) = match std::env::consts::ARCH {
        "x86_64" => (std::env::consts::ARCH, (0xb7, "aarch64")),
        mine => (mine, (0x3e, "x86_64")),
    };
    for desk in Desk::each() {
        let mut program = fs::read(bash()).unwrap();
        program[18] = other.0;
        desk.write("tree/bin/exec-server", &program);
        desk.sum_and_pack();
        let why = format!("this machine is {mine}, and the program is for {}", other.1);
        for (script, args) in
            [("tree/install.sh", None), ("dist/install.sh", None), ("dist/install.sh", Some("dist/exec-server"))]
        {
            desk.assert_refused(&desk.run(script, args.as_slice()), &why);
        }
        desk.write("tree/bin/exec-server", b"#!/bin/sh\n");
        desk.sum_and_pack();
        desk.assert_refused(&desk.run("tree/install.sh", &[]), "is not a program for Linux");

        let foreign = desk.package().replace(mine, other.1);
        fs::rename(desk.path(&desk.package()), desk.path(&foreign)).unwrap();
        desk.assert_refused(&desk.run("dist/install.sh", &[]), &format!("this machine is {mine}"));
    }
}

#[test]
fn a_program_that_does_not_run_leaves_the_old_one() {
    let desk = Desk::new(None);
    desk.run("tree/install.sh", &[]).assert_done();
    let before = fs::read(desk.path("home/.local/bin/exec-server")).unwrap();
    desk.write("tree/bin/exec-server", &fs::read(bash()).unwrap()[..4096]);
    desk.sum_and_pack();
    let said = desk.run("tree/install.sh", &[]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("does not run here; nothing was changed"), "{said:?}");
    assert_eq!(desk.installed(), whole());
    assert!(before == fs::read(desk.path("home/.local/bin/exec-server")).unwrap());
}

#[test]
fn a_running_program_is_replaced_and_runs_on() {
    for desk in Desk::each() {
        desk.run("tree/install.sh", &[]).assert_done();
        let program = desk.path("home/.local/bin/exec-server");
        let inode = fs::metadata(&program).unwrap().ino();
        let mut running = Command::new(&program)
            .args(["-c", "read -r line && echo \"$line\""])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        desk.run("tree/install.sh", &[]).assert_done();
        assert_ne!(fs::metadata(&program).unwrap().ino(), inode);
        running.stdin.take().unwrap().write_all(b"still here\n").unwrap();
        let mut heard = String::new();
        running.stdout.take().unwrap().read_to_string(&mut heard).unwrap();
        assert!(running.wait().unwrap().success());
        assert_eq!(heard, "still here\n");
    }
}

#[test]
fn uninstall_keeps_what_is_not_ours() {
    let desk = Desk::new(None);
    desk.write("home/.local/bin/other", b"");
    desk.write("home/.local/share/man/man1/exec-serverless.1", b"");
    let before = desk.installed();
    desk.run("tree/install.sh", &[]).assert_done();
    fs::create_dir_all(desk.path("home/.local/state/exec-server")).unwrap();
    let said = desk.run("tree/install.sh", &["--uninstall"]);
    said.assert_done();
    assert!(said.err.contains("sessions and tokens stay"), "{said:?}");
    assert_eq!(desk.installed(), before);
    assert!(!desk.path("home/.local/share/fish").exists());
}

#[test]
fn files_are_installed_below_the_given_prefix() {
    for desk in Desk::each() {
        for (args, prefix, expected) in [
            (vec!["--prefix", "home/with space"], None, "home/with space"),
            (vec!["--prefix=home/given/"], Some("home/not-here"), "home/given"),
            (vec![], Some("home/variable"), "home/variable"),
        ] {
            let mut command = desk.command("sh", "dist/install.sh", &args);
            if let Some(prefix) = prefix {
                command.env("PREFIX", desk.path(prefix));
            }
            let said = desk.finish(&mut command);
            said.assert_done();
            assert!(said.out.ends_with(&format!("/{expected}/bin\n")), "{said:?}");
            assert_eq!(files(&desk.path(expected)), whole());
            assert!(!desk.path("home/not-here").exists());
        }
    }
}

#[test]
fn a_prefix_that_cannot_be_written_is_reported() {
    let desk = Desk::each().pop().unwrap();
    // Where the tests are not run by root, the folder is closed by its mode.
    fs::create_dir(desk.path("closed")).unwrap();
    fs::set_permissions(desk.path("closed"), fs::Permissions::from_mode(0o555)).unwrap();
    desk.assert_refused(
        &desk.run("dist/install.sh", &["--prefix", "closed"]),
        "choose another place with `--prefix DIR`",
    );

    let desk = Desk::new(None);
    desk.write("home/.local/bin/exec-server/a-folder", b"");
    let before = desk.installed();
    let said = desk.run("dist/install.sh", &[]);
    assert!(said.code == Some(1) && said.err.contains("is a folder and in the way"), "{said:?}");
    assert_eq!(desk.installed(), before);
}

#[test]
fn a_folder_outside_path_is_reported_with_the_line_to_add() {
    let desk = Desk::new(None);
    let bin = desk.path("home/.local/bin").display().to_string();
    let install = |path: &str, shell: &str| {
        desk.finish(desk.command("sh", "dist/install.sh", &[]).env("PATH", path).env("SHELL", shell)).err
    };
    let said = install("/usr/bin:/bin", "/bin/bash");
    assert!(said.contains("add to ~/.profile: export PATH=\"$HOME/.local/bin:$PATH\""), "{said}");
    assert!(install("/usr/bin:/bin", "/usr/bin/fish").contains("fish_add_path $HOME/.local/bin"));
    assert!(install("/usr/bin:/bin", "/bin/zsh").contains("fpath=($HOME/.local/share/zsh/site-functions $fpath)"));
    assert_eq!(install(&format!("{bin}:/usr/bin:/bin"), "/bin/bash"), "");

    desk.write("old/exec-server", b"#!/bin/sh\n");
    fs::set_permissions(desk.path("old/exec-server"), fs::Permissions::from_mode(0o755)).unwrap();
    let said = install(&format!("{}:{bin}:/usr/bin:/bin", desk.path("old").display()), "/bin/bash");
    assert!(said.contains("which comes first in PATH"), "{said}");
}

#[test]
fn a_wrong_command_line_has_its_own_exit_code() {
    let desk = Desk::new(None);
    for args in [&["--frobnicate"][..], &["--prefix"], &["--prefix", ""], &["tree", "dist"], &["--uninstall", "tree"]] {
        let said = desk.run("dist/install.sh", args);
        assert_eq!(said.code, Some(2), "{args:?} {said:?}");
        assert_eq!(desk.installed(), BTreeMap::new());
    }
    let help = desk.run("dist/install.sh", &["--help"]);
    help.assert_done();
    assert!(help.out.starts_with("Usage: install.sh"));
    let said = desk.finish(desk.command("sh", "dist/install.sh", &[]).env_remove("HOME"));
    assert!(said.code == Some(1) && said.err.contains("neither HOME nor PREFIX"), "{said:?}");
}
