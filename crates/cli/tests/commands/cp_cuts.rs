//! `exec-server cp` on a link that is cut repeatedly, and with a server that is killed half-way: the copy equals the source, and every file
//! is complete from the moment it has its final name. Kills of `cp` itself are tested in `cp`.

use std::{mem::MaybeUninit, os::fd::OwnedFd};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    pipe::PipeFlags,
};

use crate::{
    commands::tree_helpers::{hidden, same_inside},
    prelude::*,
};

const CUTS: u64 = 8;

/// The links that are cut carry at most 8 MiB in total, and the large file alone is larger. So all planned cuts happen, however fast the
/// copy is.
const LONGEST: u64 = 1 << 20;

/// Large enough to be still in progress after the test has noticed its middle.
const LARGE: usize = 48 << 20;

const SMALL: usize = 60;

/// A directory that is copied into an existing directory, so that the target can be watched before the copy begins.
struct Ground {
    server: TestServer,
    home: Home,
    source: PathBuf,
    target: PathBuf,
    is_upload: bool,
}

impl Ground {
    fn new(is_upload: bool) -> Self {
        let server = TestServer::builder().behind_proxy().start();
        let home = Home::new();
        let (here, there) = (home.path().join("ground"), server.dir().join("ground"));
        let (source, target) = if is_upload { (here, there) } else { (there, here) };
        for dir in [&source, &target] {
            fs::create_dir(dir).expect("make a directory");
        }
        fs::write(source.join("large"), pattern(0, LARGE)).expect("write");
        for number in 0..SMALL {
            fs::write(source.join(format!("small{number}")), pattern(0, number * 100)).expect("write");
        }
        Self { server, home, source, target, is_upload }
    }

    fn cp(&self, url: &str) -> Command {
        let [here, there] = if self.is_upload { ["", ":"] } else { [":", ""] };
        let source = format!("{here}{}/.", self.source.display());
        let target = format!("{there}{}", self.target.display());
        self.home.command(&["cp", "-r", "--connect", url, &source, &target])
    }

    /// Waits until a good part of the large file has arrived, but not all of it.
    fn wait_for_the_middle(&self) {
        wait_for("some blocks of the large file", || {
            hidden(&self.target).iter().any(|part| fs::metadata(part).is_ok_and(|found| found.len() > 4 << 20))
        });
        assert!(!self.target.join("large").exists(), "it is under way");
    }

    /// Checks that everything was copied, that nothing else is left, and that the watcher saw each file complete.
    fn check(&self, seen: &BTreeSet<String>) {
        same_inside(&self.source, &self.target);
        let parent = self.target.parent().expect("it has one");
        assert_eq!(hidden(&self.target), Vec::<PathBuf>::new());
        assert!(!parent.join(".ground.exec-server-cp").exists(), "the mark is gone");
        assert_eq!(seen.len(), SMALL + 1, "each file was looked at when it came: {seen:?}");
    }
}

/// Checks that `cp` succeeded, and that its only messages are pairs of "lost" and "connected again".
fn ended_well(output: &Output) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for (at, line) in said.lines().enumerate() {
        let is_told = if at % 2 == 0 {
            line.starts_with("exec-server: connection to ws://127.0.0.1:") && line.ends_with("; reconnecting")
        } else {
            line.starts_with("exec-server: connected to ws://127.0.0.1:") && line.ends_with(" again")
        };
        assert!(is_told, "{said}");
    }
}

/// Checks each file of a directory when it gets its name and whenever it is written under that name.
struct Looked {
    /// One end of a pipe; dropping it stops the watcher.
    stop: OwnedFd,
    looking: thread::JoinHandle<BTreeSet<String>>,
}

impl Looked {
    fn at(ground: &Ground) -> Self {
        let (source, target) = (ground.source.clone(), ground.target.clone());
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).expect("watch");
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::MODIFY;
        inotify::add_watch(&events, &target, flags).expect("watch a directory");
        let (stopped, stop) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let looking = thread::spawn(move || look(&events, &stopped, &source, &target));
        Self { stop, looking }
    }

    /// Stops the watcher after it has handled all earlier events, and returns the names it has seen.
    fn end(self) -> BTreeSet<String> {
        drop(self.stop);
        self.looking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn look(events: &OwnedFd, stopped: &OwnedFd, source: &Path, target: &Path) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut buffer = [MaybeUninit::uninit(); 64 << 10];
    loop {
        let mut fds = [PollFd::new(events, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        poll(&mut fds, None).expect("wait for events");
        let (has_events, is_over) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if !has_events && is_over {
            return seen;
        }
        let mut reader = inotify::Reader::new(events, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(errno) => panic!("read events: {errno}"),
            };
            assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW), "no event is lost");
            let name = event.file_name().map(|name| name.to_bytes().to_owned()).unwrap_or_default();
            // The kernel reports an unnamed file (`O_TMPFILE`) with a name that begins with `#`; hidden names begin with a dot.
            if name.is_empty() || name.starts_with(b".") || name.starts_with(b"#") {
                continue;
            }
            let name = OsStr::from_bytes(&name);
            assert!(!event.events().contains(ReadFlags::MODIFY), "{name:?} is written under its name");
            let [wanted, found] = [source, target].map(|dir| fs::read(dir.join(name)).expect("it is there"));
            assert!(wanted == found, "{name:?} is seen with {} of {} bytes", found.len(), wanted.len());
            seen.insert(name.to_string_lossy().into_owned());
        }
    }
}

fn through_cuts(is_upload: bool) {
    let ground = Ground::new(is_upload);
    let looked = Looked::at(&ground);
    let proxy = Proxy::start(ground.server.address());
    let way = if is_upload { Way::Up } else { Way::Down };
    proxy.cut_next(0xC0FFEE, CUTS, &[way], LONGEST);
    let child = spawn(&mut ground.cp(&proxy.through(ground.server.url())));
    ended_well(&finish_child(child));
    assert_eq!(proxy.cuts(), CUTS, "the link was cut as often as planned");
    ground.check(&looked.end());
}

#[test]
fn an_upload_through_cuts_has_only_complete_files() {
    through_cuts(true);
}

#[test]
fn a_download_through_cuts_has_only_complete_files() {
    through_cuts(false);
}

fn through_the_end_of_a_server(is_upload: bool) {
    let mut ground = Ground::new(is_upload);
    let looked = Looked::at(&ground);
    let url = ground.server.url().to_owned();
    let child = spawn(&mut ground.cp(&url));
    ground.wait_for_the_middle();
    ground.server.kill();
    ground.server.restart();
    // The files that were open on the server are opened again.
    ended_well(&finish_child(child));
    ground.check(&looked.end());
}

#[test]
fn an_upload_continues_after_its_server_was_killed() {
    through_the_end_of_a_server(true);
}

#[test]
fn a_download_continues_after_its_server_was_killed() {
    through_the_end_of_a_server(false);
}
