//! Checks `docs/trouble.md` against the source: every message that it quotes is one that the program can print. Other tests check when the
//! messages are printed.

use crate::prelude::*;

/// Shorter pieces, such as `in`, occur everywhere and prove nothing.
const SHORTEST: usize = 8;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The whole product source, with strings as they are printed: lines that end in a backslash are joined, and quotes are unescaped.
fn source() -> String {
    fn collect(dir: &Path, text: &mut String) {
        for entry in fs::read_dir(dir).expect("list a folder of the source") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(&path, text);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&fs::read_to_string(&path).expect("read the source"));
            }
        }
    }
    let mut text = String::new();
    for entry in fs::read_dir(root().join("crates")).expect("list the crates") {
        collect(&entry.expect("an entry").path().join("src"), &mut text);
    }
    let joined: String =
        text.split("\\\n").enumerate().map(|(at, part)| if at == 0 { part } else { part.trim_start() }).collect();
    // A phrase that several messages include through a constant.
    joined.replace("{IS_IT}", "is it an exec-server?").replace("\\\"", "\"")
}

/// The lines of the blocks that quote messages, each with its line number.
fn quoted(page: &str) -> Vec<(usize, &str)> {
    let mut is_quoting = false;
    let lines = page.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.starts_with("```");
        is_quoting = if is_fence { *line == "```text" } else { is_quoting };
        is_quoting && !is_fence
    });
    lines.map(|(at, line)| (at + 1, line)).collect()
}

/// The parts of a message that are literally in the source: between variable parts, and between a text and its cause.
fn fixed(message: &str) -> impl Iterator<Item = &str> {
    message.split('…').flat_map(|part| part.split(": ")).map(|part| part.trim_matches([' ', '`'])).filter(|part| {
        // Messages of the operating system are not in our source.
        part.len() >= SHORTEST && !part.contains("os error")
    })
}

#[test]
fn every_quoted_message_is_in_the_source() {
    let page = fs::read_to_string(root().join("docs/trouble.md")).expect("read the page");
    let source = source();
    let messages = quoted(&page);
    assert!(messages.len() > 50, "only {} messages were found", messages.len());
    let missing: Vec<String> = messages
        .iter()
        .flat_map(|(line, message)| fixed(message).map(move |part| (line, part)))
        .filter(|(_, part)| !source.contains(part))
        .map(|(line, part)| format!("docs/trouble.md:{line}: not printed anywhere: {part}"))
        .collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn a_message_that_is_not_in_the_source_would_be_found() {
    let page = "text\n```text\nconnect to …: no such words anywhere\n```\nno `quote`\n```console\n$ x\n```\n";
    assert_eq!(quoted(page), [(3, "connect to …: no such words anywhere")]);
    assert_eq!(fixed(quoted(page)[0].1).collect::<Vec<_>>(), ["connect to", "no such words anywhere"]);
    let both = "start `…`: the answer is `x`; is it?";
    assert_eq!(fixed(both).collect::<Vec<_>>(), ["the answer is `x`; is it?"]);
}
