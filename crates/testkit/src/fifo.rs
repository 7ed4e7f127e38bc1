//! FIFOs by which a test makes a child continue.

use std::{fs::OpenOptions, io::Write as _, path::Path};

/// Creates a FIFO by which a test can make a child continue.
pub fn fifo(dir: &Path, name: &str) -> String {
    let path = dir.join(name);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("make a FIFO");
    path.display().to_string()
}

/// Unblocks the reader of the FIFO; waits until there is one.
pub fn release(fifo: &str) {
    let mut end = OpenOptions::new().write(true).open(fifo).expect("open the FIFO");
    end.write_all(b"\n").expect("write to the FIFO");
}
