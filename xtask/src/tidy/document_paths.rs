//! Every path of the repository that a document names exists.

use std::path::Path;

/// Folders at the root. A word in backticks that begins with one of them is a path.
const FOLDERS: &[&str] = &["crates/", "tools/", "xtask/", "docs/", "bench/", "fuzz/", "examples/"];

/// Adds a line for each path in a document that does not exist.
pub(super) fn check(root: &Path, name: &str, text: &str, broken: &mut Vec<String>) {
    let folder = root.join(name).parent().map(Path::to_owned).unwrap_or_default();
    for (number, line) in text.lines().enumerate() {
        let in_backticks = line.split('`').skip(1).step_by(2).filter(|word| is_path(word));
        let missing_paths = in_backticks.filter(|path| !root.join(path).exists());
        let missing_links = links(line).filter(|path| !folder.join(path).exists());
        for path in missing_paths.chain(missing_links) {
            broken.push(format!("{name}:{}: `{path}` does not exist", number + 1));
        }
    }
}

fn is_path(word: &str) -> bool {
    let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    is_plain && FOLDERS.iter().any(|folder| word.starts_with(folder))
}

/// Targets of Markdown links within the repository, without their anchors.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    let targets = targets.map(|target| target.split('#').next().unwrap_or_default());
    targets.filter(|target| !target.is_empty() && !target.contains(':') && !target.contains(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_links_that_lead_nowhere_are_named() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("docs/guide")).unwrap();
        std::fs::write(root.path().join("docs/a.md"), "").unwrap();
        let mut broken = Vec::new();
        let text = "`docs/a.md`, `docs/*.md`, `docs/b.md`, [a](../a.md#x), [web](https://example.com/x)\n[c](c.md), [here](#x)\n";
        check(root.path(), "docs/guide/page.md", text, &mut broken);
        assert_eq!(
            broken,
            ["docs/guide/page.md:1: `docs/b.md` does not exist", "docs/guide/page.md:2: `c.md` does not exist"]
        );
    }
}
