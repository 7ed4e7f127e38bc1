//! What a model calls a tool: `mcp__SERVER__TOOL`, in the letters that models take and short enough for them.
//!
//! On the wire to its server a tool has its own name; the made one leads back to it. Names do not depend on the order of
//! servers and tools, so that they stay the same as long as the tools do. Must not know how a tool is called.

use std::collections::{BTreeMap, BTreeSet};

use sha1::{Digest as _, Sha1};

/// The longest name that models take, in bytes.
pub const NAME_MAX_BYTES: usize = 64;

/// What tells two tools apart that would have one name: 48 bits of a digest.
const MARK_HEX: usize = 12;

/// A tool by its own name, and the server that has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ToolRef {
    /// The server's name in the configuration.
    pub server: String,
    /// The tool's own name.
    pub tool: String,
}

/// Gives every tool a name of its own. One that is there twice counts once.
///
/// What is no letter, digit or `_` becomes `_`. Where that gives two tools one name, or a name is too long, it gets a mark made
/// from both own names at its end, and all of those that met get one.
pub fn qualify(tools: impl IntoIterator<Item = ToolRef>) -> BTreeMap<String, ToolRef> {
    // In an order of its own, whatever order they came in.
    let tools: BTreeSet<ToolRef> = tools.into_iter().collect();
    let mut wanted: BTreeMap<String, Vec<ToolRef>> = BTreeMap::new();
    for tool in tools {
        wanted.entry(plain(&tool)).or_default().push(tool);
    }
    let mut named = BTreeMap::new();
    let mut met = Vec::new();
    for (name, mut tools) in wanted {
        match tools.pop() {
            Some(tool) if tools.is_empty() && name.len() <= NAME_MAX_BYTES => drop(named.insert(name, tool)),
            last => met.extend(tools.into_iter().chain(last).map(|tool| (name.clone(), tool))),
        }
    }
    for (name, tool) in met {
        // A second try is for a mark that another tool has for its name.
        let free = (0_u64..).map(|attempt| marked(&name, &tool, attempt)).find(|name| !named.contains_key(name));
        named.insert(free.expect("there are more marks than tools"), tool);
    }
    named
}

fn plain(tool: &ToolRef) -> String {
    let letters = |text: &str| -> String {
        text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
    };
    format!("mcp__{}__{}", letters(&tool.server), letters(&tool.tool))
}

fn marked(name: &str, tool: &ToolRef, attempt: u64) -> String {
    let mut digest = Sha1::new();
    digest.update(&tool.server);
    // A byte that stands in neither name keeps them apart.
    digest.update([0xff]);
    digest.update(&tool.tool);
    if attempt > 0 {
        digest.update([0xff]);
        digest.update(attempt.to_le_bytes());
    }
    let mark: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let kept = name.len().min(NAME_MAX_BYTES - MARK_HEX - 1);
    // All ASCII by now, so that any place is one to cut at.
    format!("{}_{}", &name[..kept], &mark[..MARK_HEX])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(server: &str, tool: &str) -> ToolRef {
        ToolRef { server: server.to_owned(), tool: tool.to_owned() }
    }

    /// The names of these tools, each with what it stands for.
    fn names(tools: &[(&str, &str)]) -> Vec<(String, ToolRef)> {
        let named = qualify(tools.iter().map(|(server, name)| tool(server, name)));
        for name in named.keys() {
            let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_';
            assert!(name.len() <= NAME_MAX_BYTES && name.chars().all(is_good), "{name}");
        }
        // The order in which they come must not show.
        assert_eq!(named, qualify(tools.iter().rev().map(|(server, name)| tool(server, name))));
        named.into_iter().collect()
    }

    #[test]
    fn test_qualify_tools_short_non_duplicated_names() {
        let expected = [
            ("mcp__one__read".to_owned(), tool("one", "read")),
            ("mcp__two__read".to_owned(), tool("two", "read")),
            ("mcp__two__write_file".to_owned(), tool("two", "write_file")),
        ];
        assert_eq!(names(&[("one", "read"), ("two", "read"), ("two", "write_file")]), expected);
    }

    #[test]
    fn test_qualify_tools_duplicated_names_skipped() {
        assert_eq!(names(&[("one", "read"), ("one", "read")]), [("mcp__one__read".to_owned(), tool("one", "read"))]);
    }

    #[test]
    fn test_qualify_tools_long_names_same_server() {
        let (a, b) = (format!("{}a", "x".repeat(100)), format!("{}b", "x".repeat(100)));
        let named = names(&[("server", &a), ("server", &b)]);
        assert_eq!(named.len(), 2);
        assert!(named.iter().all(|(name, _)| name.len() == NAME_MAX_BYTES && name.starts_with("mcp__server__xxx")));
        // As long as allowed needs no mark, a byte more does.
        let (fits, above) = ("y".repeat(64 - 13), "y".repeat(65 - 13));
        assert_eq!(names(&[("server", &fits)])[0].0, format!("mcp__server__{fits}"));
        assert_ne!(names(&[("server", &above)])[0].0[..64], format!("mcp__server__{above}")[..64]);
    }

    #[test]
    fn test_qualify_tools_sanitizes_invalid_characters() {
        let named = names(&[("my-server", "read.file/now"), ("s", "größe")]);
        let expected = ["mcp__my_server__read_file_now", "mcp__s__gr__e"];
        assert_eq!(named.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), expected);
        assert_eq!(named[0].1, tool("my-server", "read.file/now"));
    }

    #[test]
    fn test_qualify_tools_disambiguates_sanitized_server_collisions() {
        let named = names(&[("a-b", "t"), ("a_b", "t"), ("a_b", "u")]);
        assert_eq!(named.len(), 3);
        assert!(named.contains(&("mcp__a_b__u".to_owned(), tool("a_b", "u"))), "who meets nobody keeps its name");
        let marked: Vec<_> = named.iter().filter(|(name, _)| name.starts_with("mcp__a_b__t_")).collect();
        assert_eq!(marked.len(), 2, "both get a mark: {named:?}");
        assert!(marked.iter().all(|(name, _)| name.len() == "mcp__a_b__t_".len() + MARK_HEX));
    }

    #[test]
    fn test_qualify_tools_disambiguates_sanitized_tool_collisions() {
        let named = names(&[("s", "a.b"), ("s", "a-b"), ("s", "a b")]);
        assert_eq!(named.len(), 3);
        assert!(named.iter().all(|(name, _)| name.starts_with("mcp__s__a_b_")), "{named:?}");
    }

    #[test]
    fn test_qualify_tools_disambiguates_where_server_and_tool_meet() {
        let named = names(&[("a__b", "c"), ("a", "b__c")]);
        assert_eq!(named.len(), 2);
        assert!(named.iter().all(|(name, _)| name.starts_with("mcp__a__b__c_")), "{named:?}");
        // Somebody may have a name that looks like another's mark.
        let taken = named[0].0.strip_prefix("mcp__a__").expect("its server").to_owned();
        assert_eq!(names(&[("a__b", "c"), ("a", "b__c"), ("a", &taken)]).len(), 3);
    }
}
