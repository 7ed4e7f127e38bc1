//! Terminals: a pty whose master is in the hands of the test, which plays the user.

use std::{
    fs::File,
    io::{Read as _, Write},
    os::fd::OwnedFd,
    process::{Command, Stdio},
    thread,
};

use rustix::{
    pty::OpenptFlags,
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

use crate::program::{Running, end_of, read_until, spawn, text};

/// A pty: the master for the test, which plays the user, and the slave for the program.
pub struct Terminal {
    /// Write keys here, and read the screen.
    pub keyboard: File,
    slave: File,
}

impl Terminal {
    pub fn new(rows: u16, cols: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master: OwnedFd = rustix::pty::openpt(flags).expect("open a pty");
        rustix::pty::grantpt(&master).expect("grant the pty");
        rustix::pty::unlockpt(&master).expect("unlock the pty");
        let slave = File::from(rustix::pty::ioctl_tiocgptpeer(&master, flags).expect("open the terminal"));
        let terminal = Self { keyboard: File::from(master), slave };
        terminal.resize(rows, cols);
        terminal
    }

    /// A new terminal of this size, with a program on it.
    pub fn with(rows: u16, cols: u16, command: Command) -> (Self, Running) {
        let terminal = Self::new(rows, cols);
        let program = terminal.start(command);
        (terminal, program)
    }

    /// Starts a program with the terminal as its three standard streams.
    pub fn start(&self, command: Command) -> Running {
        Self::start_on(&self.slave, command)
    }

    fn start_on(slave: &File, mut command: Command) -> Running {
        let end = || Stdio::from(slave.try_clone().expect("share the terminal"));
        spawn(command.stdin(end()).stdout(end()).stderr(end()))
    }

    pub fn resize(&self, rows: u16, cols: u16) {
        let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).expect("set the size");
    }

    pub fn keys(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).expect("type");
    }

    /// Waits until the screen shows a text, and returns everything up to it.
    pub fn see(&mut self, text: &str) -> String {
        read_until(&mut self.keyboard, text)
    }

    /// Types keys and waits for a text on the screen.
    pub fn exchange(&mut self, keys: &[u8], text: &str) -> String {
        self.keys(keys);
        self.see(text)
    }

    /// Whether the terminal is in raw mode: no line editing and no echo.
    pub fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.slave).expect("read the modes").local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }
}

/// Runs a command to its end on a terminal of 24 rows and 200 columns, and returns everything that reached the screen.
pub fn run(command: Command) -> String {
    let Terminal { keyboard: mut screen, slave } = Terminal::new(24, 200);
    let mut child = Terminal::start_on(&slave, command);
    drop(slave);
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        let mut chunk = [0; 4096];
        // Reading a pty master fails with EIO when the last program has closed the slave.
        while let Ok(read @ 1..) = screen.read(&mut chunk) {
            all.extend_from_slice(&chunk[..read]);
        }
        all
    });
    end_of(&mut child);
    text(&reader.join().expect("the reader does not panic"))
}
