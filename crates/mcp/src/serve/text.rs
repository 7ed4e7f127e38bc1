//! Converts the bytes of programs and files to text for a model. The text has a maximum size and says where something was left out.

use std::collections::VecDeque;

/// The beginning and the end of a byte stream, each up to half of a limit. The bytes between them are only counted.
///
/// Memory use is bounded by the limit.
#[derive(Debug)]
pub(super) struct HeadTail {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    half: usize,
    /// All bytes, including those that were lost before they arrived here.
    pub(super) total: u64,
    /// Bytes that were lost before they arrived here. Does not count bytes dropped because of the limit.
    lost: u64,
}

/// The kept part of a stream, as text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BoundedText {
    /// The text. A line in it says how much was left out.
    pub(super) text: String,
    /// All bytes of the stream.
    pub(super) bytes: u64,
    /// Bytes that are not in the text.
    pub(super) omitted: u64,
}

impl HeadTail {
    /// Keeps at most about `most` bytes: an odd limit is rounded up.
    pub(super) fn new(most: usize) -> Self {
        Self { head: Vec::new(), tail: VecDeque::new(), half: most.div_ceil(2), total: 0, lost: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        // Bytes after a loss belong to the tail, so that the text shows the loss between head and tail.
        let room = if self.lost > 0 { 0 } else { self.half - self.head.len() };
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(first);
        let kept = &rest[rest.len().saturating_sub(self.half)..];
        let over = (self.tail.len() + kept.len()).saturating_sub(self.half);
        self.tail.drain(..over);
        self.tail.extend(kept);
    }

    /// Counts bytes that were lost and cannot be read.
    pub(super) fn record_loss(&mut self, bytes: u64) {
        self.total += bytes;
        self.lost += bytes;
    }

    /// The first `most` characters of the last line that is not blank. Looks only at the last `4 * most` kept bytes.
    pub(super) fn last_line(&self, most: usize) -> String {
        let all: Vec<u8> = self.head.iter().chain(&self.tail).copied().collect();
        // A character has at most four bytes.
        let text = String::from_utf8_lossy(&all[all.len().saturating_sub(4 * most)..]).into_owned();
        let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        line.chars().take(most).collect()
    }

    pub(super) fn finish(self) -> BoundedText {
        let mut tail: Vec<u8> = self.tail.into();
        let mut head = self.head;
        let missing = self.total - (head.len() + tail.len()) as u64;
        if missing == 0 {
            head.append(&mut tail);
            return BoundedText { text: lossy(&head), bytes: self.total, omitted: 0 };
        }
        // A character may be cut at the end of the head or at the start of the tail. Remove its bytes on both sides.
        head.truncate(head.len() - incomplete_end(&head));
        let incomplete_start = tail.iter().take(3).take_while(|byte| is_continuation(**byte)).count();
        tail.drain(..incomplete_start);
        let omitted = self.total - (head.len() + tail.len()) as u64;
        let line_end = if head.is_empty() || head.ends_with(b"\n") { "" } else { "\n" };
        let text = format!("{}{line_end}[… {omitted} bytes left out …]\n{}", lossy(&head), lossy(&tail));
        BoundedText { text, bytes: self.total, omitted }
    }
}

/// Replaces invalid UTF-8.
pub(super) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The line, truncated if it has more than `most` bytes. The flag says whether it was.
pub(super) fn cut_line(line: &str, most: usize) -> (String, bool) {
    if line.len() <= most {
        return (line.to_owned(), false);
    }
    let end = line.floor_char_boundary(most);
    (format!("{}[… {} bytes of this line left out …]", &line[..end], line.len() - end), true)
}

/// Whether bytes are not text: there is a NUL in the first 8 KiB.
pub(super) fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(8 << 10).any(|byte| *byte == 0)
}

/// The number of bytes at the end that start a character but do not complete it.
pub(super) fn incomplete_end(bytes: &[u8]) -> usize {
    for back in 1..=3.min(bytes.len()) {
        let byte = bytes[bytes.len() - back];
        if is_continuation(byte) {
            continue;
        }
        let needs = match byte {
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf7 => 4,
            _ => 1,
        };
        return if needs > back { back } else { 0 };
    }
    0
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(most: usize, parts: &[&str]) -> BoundedText {
        let mut all = HeadTail::new(most);
        for part in parts {
            all.push(part.as_bytes());
        }
        all.finish()
    }

    #[test]
    fn output_within_the_limit_is_complete_however_it_is_split() {
        let whole = BoundedText { text: "abcdefgh".to_owned(), bytes: 8, omitted: 0 };
        assert_eq!(kept(8, &["abcdefgh"]), whole);
        assert_eq!(kept(8, &["a", "bcd", "", "efgh"]), whole);
        assert_eq!(kept(9, &["abc", "defgh"]), whole);
        assert_eq!(kept(8, &[]), BoundedText { text: String::new(), bytes: 0, omitted: 0 });
    }

    #[test]
    fn above_the_limit_the_head_and_the_tail_stay_and_the_rest_is_counted() {
        let text = "0123\n[… 6 bytes left out …]\nabcd";
        for parts in [&["01234567", "89abcd"][..], &["0123456789abcd"], &["01", "23456789ab", "c", "d"]] {
            assert_eq!(kept(8, parts), BoundedText { text: text.to_owned(), bytes: 14, omitted: 6 }, "{parts:?}");
        }
    }

    #[test]
    fn a_character_is_never_cut_in_two() {
        // Four bytes are kept on each side; `ä` has two.
        let kept = kept(8, &["abcääääääxyz"]);
        assert_eq!(kept.text, "abc\n[… 12 bytes left out …]\nxyz");
        assert_eq!((kept.bytes, kept.omitted), (18, 12));
    }

    #[test]
    fn lost_bytes_are_counted_and_shown_between_the_output_around_them() {
        let mut all = HeadTail::new(100);
        all.push(b"before\n");
        all.record_loss(1000);
        all.push(b"after\n");
        let kept = all.finish();
        assert_eq!(kept.text, "before\n[… 1000 bytes left out …]\nafter\n");
        assert_eq!((kept.bytes, kept.omitted), (1013, 1000));
    }

    #[test]
    fn a_flood_of_output_takes_bounded_memory() {
        let mut all = HeadTail::new(1 << 10);
        for _ in 0..1000 {
            all.push(&[b'x'; 64 << 10]);
        }
        assert!(all.head.capacity() <= 2 << 10 && all.tail.capacity() <= 4 << 10);
        assert_eq!(all.total, 1000 * (64 << 10));
        assert_eq!(all.last_line(5), "xxxxx");
    }

    #[test]
    fn long_lines_are_truncated_between_characters() {
        assert_eq!(cut_line("short", 5), ("short".to_owned(), false));
        assert_eq!(cut_line("äääää", 3), ("ä[… 8 bytes of this line left out …]".to_owned(), true));
    }
}
