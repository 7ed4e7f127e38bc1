//! Runs a program on a pty: all its standard streams are the terminal, and everything that reaches the screen is returned.

use std::{
    fs::File,
    io::Read as _,
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    thread,
};

use rustix::{
    pty::OpenptFlags,
    termios::{Winsize, tcsetwinsize},
};

/// A child process that is killed on drop, also when the test fails.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }
}

/// Runs a command to its end on a terminal of 24 rows and 200 columns, and returns its output.
pub fn run(mut command: Command) -> String {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master: OwnedFd = rustix::pty::openpt(flags).expect("open a pty");
    rustix::pty::grantpt(&master).expect("grant the pty");
    rustix::pty::unlockpt(&master).expect("unlock the pty");
    let slave = File::from(rustix::pty::ioctl_tiocgptpeer(&master, flags).expect("open the terminal"));
    let size = Winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).expect("set the size");
    let end = || Stdio::from(slave.try_clone().expect("share the terminal"));
    let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("start a program");
    let mut child = Ending(child);
    drop((command, slave));
    let mut screen = File::from(master);
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        let mut chunk = [0; 4096];
        // Reading a pty master fails with EIO when the last program has closed the slave.
        while let Ok(read @ 1..) = screen.read(&mut chunk) {
            all.extend_from_slice(&chunk[..read]);
        }
        all
    });
    let mut is_over = false;
    crate::wait_for("end of the program on the terminal", || {
        is_over = child.0.try_wait().expect("wait for the program").is_some();
        is_over
    });
    String::from_utf8_lossy(&reader.join().expect("the reader does not panic")).into_owned()
}
