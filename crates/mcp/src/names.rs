//! Builds the tool names that a model sees: `mcp__SERVER__TOOL`, with only the characters and the length that models accept.
//!
//! Requests to a server use the server's own name for a tool; the map from `qualify` leads from the model's name back to it. Names do not
//! depend on the order of servers and tools, so they change only when the tools change.

use std::collections::{BTreeMap, BTreeSet};

use sha1::{Digest as _, Sha1};

/// The longest tool name that models accept, in bytes.
pub const NAME_MAX_BYTES: usize = 64;

/// Length of the hash suffix that distinguishes tools with the same name: 12 hex digits, 48 bits.
const HASH_HEX: usize = 12;

/// A tool, by its server and the server's name for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ToolRef {
    pub server: String,
    /// The server's name for the tool.
    pub tool: String,
}

/// Maps unique names to the tools. Duplicates of a tool are merged.
///
/// Every character other than an ASCII letter, a digit or `_` becomes `_`. If that gives several tools the same name, or a name is too
/// long, the name gets a hash of the server and tool names as a suffix. All tools in a collision get a suffix.
pub fn qualify(tools: impl IntoIterator<Item = ToolRef>) -> BTreeMap<String, ToolRef> {
    // Sort, so that the result does not depend on the order of the input.
    let tools: BTreeSet<ToolRef> = tools.into_iter().collect();
    let mut by_name: BTreeMap<String, Vec<ToolRef>> = BTreeMap::new();
    for tool in tools {
        by_name.entry(plain_name(&tool)).or_default().push(tool);
    }
    let mut named = BTreeMap::new();
    let mut needs_suffix = Vec::new();
    for (name, mut tools) in by_name {
        match tools.pop() {
            Some(tool) if tools.is_empty() && name.len() <= NAME_MAX_BYTES => drop(named.insert(name, tool)),
            last => needs_suffix.extend(tools.into_iter().chain(last).map(|tool| (name.clone(), tool))),
        }
    }
    for (name, tool) in needs_suffix {
        // Further attempts are for the case that another tool's plain name equals this suffixed name.
        let free = (0_u64..).map(|attempt| suffixed_name(&name, &tool, attempt)).find(|name| !named.contains_key(name));
        named.insert(free.expect("there are more suffixes than tools"), tool);
    }
    named
}

fn plain_name(tool: &ToolRef) -> String {
    let letters = |text: &str| -> String {
        text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
    };
    format!("mcp__{}__{}", letters(&tool.server), letters(&tool.tool))
}

fn suffixed_name(name: &str, tool: &ToolRef, attempt: u64) -> String {
    let mut digest = Sha1::new();
    digest.update(&tool.server);
    // UTF-8 never contains this byte, so it separates the two names unambiguously.
    digest.update([0xff]);
    digest.update(&tool.tool);
    if attempt > 0 {
        digest.update([0xff]);
        digest.update(attempt.to_le_bytes());
    }
    let hash = format!("{:x}", digest.finalize());
    let kept = name.len().min(NAME_MAX_BYTES - HASH_HEX - 1);
    // The name is ASCII here, so it can be cut at any byte.
    format!("{}_{}", &name[..kept], &hash[..HASH_HEX])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(server: &str, tool: &str) -> ToolRef {
        ToolRef { server: server.to_owned(), tool: tool.to_owned() }
    }

    /// The names of these tools, each with the tool that it refers to.
    fn names(tools: &[(&str, &str)]) -> Vec<(String, ToolRef)> {
        let named = qualify(tools.iter().map(|(server, name)| tool(server, name)));
        for name in named.keys() {
            let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_';
            assert!(name.len() <= NAME_MAX_BYTES && name.chars().all(is_good), "{name}");
        }
        // The input order must not matter.
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
        // A name of exactly the maximum length gets no suffix; one byte more gets one.
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
        assert!(
            named.contains(&("mcp__a_b__u".to_owned(), tool("a_b", "u"))),
            "a name without a collision has no suffix"
        );
        let suffixed: Vec<_> = named.iter().filter(|(name, _)| name.starts_with("mcp__a_b__t_")).collect();
        assert_eq!(suffixed.len(), 2, "both get a suffix: {named:?}");
        assert!(suffixed.iter().all(|(name, _)| name.len() == "mcp__a_b__t_".len() + HASH_HEX));
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
        // A tool's own name may look like the suffixed name of another tool.
        let taken = named[0].0.strip_prefix("mcp__a__").expect("its server").to_owned();
        assert_eq!(names(&[("a__b", "c"), ("a", "b__c"), ("a", &taken)]).len(), 3);
    }
}
