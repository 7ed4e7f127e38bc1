//! The progress line of `cp`: bytes copied and in total, speed, and time left.
//!
//! The copy finds files while it descends, so a fraction of the files found so far would keep falling. The total therefore comes from a
//! count of the source that runs beside the copy. Until the total is known, the line shows no fraction. A fraction that was shown never
//! falls.
//!
//! Written by hand: indicatif would add three crates (indicatif, console, unit-prefix) and cover only the drawing of one line. The total
//! that arrives late, the fraction that never falls and the speed over the last seconds would stay here.

use std::{
    collections::VecDeque,
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use exec_server_client::{
    cp::CopyEndpoint,
    fs::{EntryKind, Links},
};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::Instant;

use crate::{display, terminal};

/// Minimum interval between two draws.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// The window over which the speed is averaged.
const SPEED_OVER: Duration = Duration::from_secs(5);

/// The time left is shown after this long; before, the speed is not reliable.
const SPEED_AFTER: Duration = Duration::from_secs(1);

/// Concurrent directory listings. Over a slow link, many listings take about as long as one.
const LISTINGS: usize = 16;

/// Maximum number of entries counted. A larger tree is copied without a fraction.
const ENTRIES_MAX: usize = 5_000_000;

/// One terminal line that is redrawn in place.
pub(super) struct ProgressLine {
    began: Instant,
    drawn: Option<Instant>,
    files: u64,
    bytes: u64,
    /// Total size of the files begun so far; a lower bound of the total.
    begun_bytes: u64,
    /// Set when the source has been counted.
    pub(super) total: Option<u64>,
    /// The largest fraction shown so far.
    fraction: f64,
    /// Pairs of elapsed time and bytes copied by then, for the speed.
    samples: VecDeque<(Duration, u64)>,
    name: String,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            drawn: None,
            files: 0,
            bytes: 0,
            begun_bytes: 0,
            total: None,
            fraction: 0.0,
            samples: VecDeque::from([(Duration::ZERO, 0)]),
            name: String::new(),
        }
    }

    pub(super) fn begin_file(&mut self, name: String, size: u64) {
        self.begun_bytes = self.begun_bytes.saturating_add(size);
        self.name = name;
    }

    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.draw_sometimes();
    }

    pub(super) fn add_file(&mut self) {
        self.files += 1;
        self.draw_sometimes();
    }

    pub(super) fn finish(&mut self) {
        // The copy has ended, so no other file will be begun and `begun_bytes` is the total.
        self.total.get_or_insert(self.begun_bytes);
        self.draw();
        put("\n");
    }

    fn draw_sometimes(&mut self) {
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_EVERY) {
            self.draw();
        }
    }

    fn draw(&mut self) {
        self.drawn = Some(Instant::now());
        let width = usize::from(terminal::size().map_or(80, |size| size.cols));
        // Leave the last column free: writing to it would wrap the line on some terminals.
        let text: String = self.text(self.began.elapsed()).chars().take(width.saturating_sub(1)).collect();
        put(&format!("\r\x1b[K{text}"));
    }

    fn text(&mut self, now: Duration) -> String {
        const BAR: usize = 20;
        let speed = self.speed(now);
        let rest = format!("{}/s", display::size(speed as u64));
        let copied = display::size(self.bytes);
        let Some(total) = self.total.map(|total| total.max(self.begun_bytes)) else {
            return format!("[{:^BAR$}]  {copied}  {rest}  {} files  {}", "counting", self.files, self.name);
        };
        let fraction = if total == 0 { 1.0 } else { (self.bytes as f64 / total as f64).min(1.0) };
        self.fraction = self.fraction.max(fraction);
        let full = (self.fraction * BAR as f64) as usize;
        let missing = total.saturating_sub(self.bytes);
        let left = if missing == 0 || now < SPEED_AFTER || speed < 1.0 {
            String::new()
        } else {
            // `from_secs_f64` panics on a value that is too large.
            format!("  {} left", display::age(Duration::from_secs_f64((missing as f64 / speed).min(1e9))))
        };
        format!(
            "[{:<BAR$}] {:>3}%  {copied} of {}  {rest}{left}  {} files  {}",
            "#".repeat(full),
            (self.fraction * 100.0) as u64,
            display::size(total),
            self.files,
            self.name,
        )
    }

    /// Bytes per second over the last `SPEED_OVER`.
    fn speed(&mut self, now: Duration) -> f64 {
        self.samples.push_back((now, self.bytes));
        // The oldest sample kept is as old as the window, or older if the line was not drawn for a while.
        while self.samples.len() > 2 && self.samples.get(1).is_some_and(|(at, _)| now - *at >= SPEED_OVER) {
            self.samples.pop_front();
        }
        let (at, bytes) = self.samples.front().copied().unwrap_or_default();
        self.bytes.saturating_sub(bytes) as f64 / (now - at).as_secs_f64().max(0.001)
    }
}

pub(super) fn put(text: &str) {
    io::stderr().write_all(text.as_bytes()).ok(); // A lost terminal needs no progress line.
}

/// Total bytes of all files of the sources; `None` if they cannot be counted. The copy itself reports the errors.
pub(super) async fn count(sources: &[CopyEndpoint]) -> Option<u64> {
    let mut total = 0_u64;
    for source in sources {
        let found = source.files.metadata(&source.path, Links::Follow).await.ok()?;
        total = total.saturating_add(match found.kind {
            EntryKind::Directory => count_tree(source).await?,
            _ => found.size,
        });
    }
    Some(total)
}

async fn count_tree(source: &CopyEndpoint) -> Option<u64> {
    let mut total = 0_u64;
    let mut entries = 0;
    // The source itself may be a symlink, which the copy follows too.
    let root = source.files.canonicalize(&source.path).await.ok()?;
    let mut waiting: Vec<(PathBuf, Option<std::ffi::OsString>)> = vec![(root, None)];
    let mut listing = FuturesUnordered::new();
    loop {
        while listing.len() < LISTINGS
            && let Some((dir, after)) = waiting.pop()
        {
            listing.push(async move {
                // The root is canonical, and the copy follows no symlink below it.
                let page = source.files.list(&dir, after, Links::Refuse).await;
                (dir, page)
            });
        }
        let Some((dir, page)) = listing.next().await else { return Some(total) };
        // The copy reports a directory that cannot be listed; here it counts as empty.
        let Ok(page) = page else { continue };
        entries += page.entries.len();
        // An empty page with `more` would be requested again forever.
        if entries > ENTRIES_MAX || (page.more && page.entries.is_empty()) {
            return None;
        }
        if page.more {
            waiting.push((dir.clone(), page.entries.last().map(|last| last.name.clone())));
        }
        for entry in page.entries {
            match entry.kind {
                EntryKind::File => total = total.saturating_add(entry.size),
                EntryKind::Directory => waiting.push((dir.join(&entry.name), None)),
                EntryKind::Symlink | EntryKind::Other => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_line_shows_the_progress_and_the_time_left() {
        let mut line = ProgressLine::new();
        line.begin_file("big".to_owned(), 2 << 30);
        line.total = Some(2 << 30);
        line.bytes = 512 * MIB;
        line.files = 3;
        assert_eq!(
            line.text(seconds(2)),
            "[#####               ]  25%  512.0 MiB of 2.0 GiB  256.0 MiB/s  6s left  3 files  big"
        );
    }

    #[test]
    fn no_fraction_is_shown_before_the_total_is_known_and_it_never_falls_afterwards() {
        let mut line = ProgressLine::new();
        line.begin_file("first".to_owned(), MIB);
        line.bytes = MIB;
        assert_eq!(line.text(seconds(1)), "[      counting      ]  1.0 MiB  1.0 MiB/s  0 files  first");
        line.total = Some(4 * MIB);
        assert!(line.text(seconds(2)).contains(" 25%  1.0 MiB of 4.0 MiB"));
        // The tree has grown since it was counted.
        line.begin_file("new".to_owned(), 99 * MIB);
        line.bytes = 2 * MIB;
        assert!(line.text(seconds(3)).contains(" 25%  2.0 MiB of 100.0 MiB"));
    }

    #[test]
    fn the_speed_is_that_of_the_last_seconds() {
        let mut line = ProgressLine::new();
        line.total = Some(1000 * MIB);
        // An interrupted copy had already transferred the first part.
        line.bytes = 900 * MIB;
        for second in 1..=20 {
            line.bytes += MIB;
            line.text(seconds(second));
        }
        line.bytes += MIB;
        assert!(line.text(seconds(21)).contains("  1.0 MiB/s  1m left"), "{}", line.text(seconds(21)));
    }
}
