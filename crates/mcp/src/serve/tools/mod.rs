//! The tools of a session: a table with their descriptions and schemas, and the dispatch from a tool's name to its function.
//!
//! A tool takes its own argument type and returns a [`ToolReply`] or a [`ToolFailure`]. Both are results of the call. A failure has `isError` and a
//! text that says what to do next. `run` runs commands, `processes` handles processes that outlive a call and keeps them in a `process_table`,
//! `files` and `edit` work on files, and `search` searches directory trees.

/// A failure with a formatted text.
macro_rules! failure {
    ($($text:tt)*) => { $crate::serve::tools::ToolFailure(format!($($text)*)) };
}

mod edit;
mod files;
mod process_table;
mod processes;
mod run;
mod search;

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use exec_server_client::{ErrorKind, fs, protocol::failure::Kind};
use rmcp::{
    RoleServer,
    model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations},
    service::RequestContext,
};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time;

pub(super) use process_table::ProcessTable;

use super::{McpServer, limits, process_sessions::ProcessSession, until_set};

/// Time limit for a change of a file. A cut link is usually back sooner.
const CHANGE_WITHIN: Duration = Duration::from_secs(60);

/// How long a cancelled change may take to complete. Shorter than the time that calls have when the server ends.
const SETTLE_WITHIN: Duration = Duration::from_secs(2);

/// The advice for a path that the sandbox denies.
const OUTSIDE_ROOT: &str =
    "; only what is beneath the root of this server can be used, and none of the server's own files";

/// One call and its context.
pub(super) struct CallContext<'a> {
    pub(super) server: &'a McpServer,
    /// The executor session for processes.
    pub(super) process_session: &'a ProcessSession,
    pub(super) table: &'a ProcessTable,
    pub(super) context: &'a RequestContext<RoleServer>,
    /// Whether there is a session that can own processes.
    pub(super) has_session: bool,
}

impl CallContext<'_> {
    /// Resolves when the answer is not needed: the client cancelled the call, or the server ends. Returns the reason.
    async fn cancelled(&self) -> &'static str {
        let mut ending = self.server.ending.subscribe();
        // Both arms are cancel safe.
        tokio::select! {
            () = self.context.ct.cancelled() => "the call was cancelled",
            () = until_set(&mut ending) => "the server is shutting down",
        }
    }

    /// Runs an operation that changes nothing. It is dropped if the call is cancelled.
    async fn unless_cancelled<T>(&self, doing: impl Future<Output = Result<T, ToolFailure>>) -> Result<T, ToolFailure> {
        tokio::select! {
            done = doing => done,
            why = self.cancelled() => Err(failure!("{why}")),
        }
    }

    /// Runs an operation that changes something. After a cancellation it still gets a short time to complete. Its total time is limited.
    async fn until_settled<T>(&self, doing: impl Future<Output = Result<T, ToolFailure>>) -> Result<T, ToolFailure> {
        let over = async {
            tokio::select! {
                why = self.cancelled() => {
                    time::sleep(SETTLE_WITHIN).await;
                    why.to_owned()
                }
                () = time::sleep(CHANGE_WITHIN) => {
                    format!("the executor has not answered within {} s", CHANGE_WITHIN.as_secs())
                }
            }
        };
        tokio::select! {
            done = doing => done,
            why = over => Err(failure!("{why}; look before you do it again, it may have happened")),
        }
    }
}

/// The answer of a tool: a text for the model, and the same as structured data.
#[derive(Debug)]
pub(super) struct ToolReply {
    text: String,
    data: Value,
    is_error: bool,
}

impl ToolReply {
    fn new(text: impl Into<String>, data: &impl Serialize) -> Self {
        // Cannot fail: our result types are structs, and the keys of their maps are strings.
        let data = serde_json::to_value(data).expect("a result is JSON");
        Self { text: text.into(), data, is_error: false }
    }
}

/// Why a tool failed, in words that a model can act on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ToolFailure(pub(super) String);

impl ToolFailure {
    pub(super) fn into_result(self) -> CallToolResult {
        CallToolResult::error(vec![ContentBlock::text(self.0)])
    }
}

impl From<exec_server_client::Error> for ToolFailure {
    fn from(error: exec_server_client::Error) -> Self {
        let advice = match error.server_kind() {
            Some(Kind::ProgramNotFound) => "; check the name, or give an absolute path",
            Some(Kind::CwdNotFound) => "; check `cwd` with list_directory",
            Some(Kind::SandboxDenied) => OUTSIDE_ROOT,
            _ if error.kind() == ErrorKind::SessionLost => {
                "; its processes are gone, but the executor can be used again: call the tool once more"
            }
            _ => "",
        };
        Self(format!("{error}{advice}"))
    }
}

impl From<fs::FileError> for ToolFailure {
    fn from(error: fs::FileError) -> Self {
        let advice = match error.kind {
            fs::FileErrorKind::NotFound => "; check the path with list_directory or search_files",
            fs::FileErrorKind::SandboxDenied => OUTSIDE_ROOT,
            fs::FileErrorKind::IsADirectory => "; it is a directory: use list_directory",
            fs::FileErrorKind::Disconnected => "; look before you do it again, it may have happened",
            _ => "",
        };
        Self(format!("{error}{advice}"))
    }
}

/// A command: one string for the shell, or a program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "`command` must be a string for the shell, or an array of strings: the program and its arguments"
)]
#[schemars(inline)]
enum CommandArgument {
    Shell(String),
    Program(Vec<String>),
}

impl CommandArgument {
    /// The argument vector to start.
    fn argv(self, shell: &str) -> Result<Vec<String>, ToolFailure> {
        let argv = match self {
            Self::Shell(text) if text.trim().is_empty() => return Err(failure!("`command` is empty")),
            Self::Shell(text) => vec![shell.to_owned(), "-c".to_owned(), text],
            Self::Program(words) => words,
        };
        if argv.first().is_none_or(|program| program.is_empty()) {
            return Err(failure!("`command` is empty: its first element is the program"));
        }
        if argv.iter().map(String::len).sum::<usize>() > limits::COMMAND_BYTES {
            let most = limits::COMMAND_BYTES;
            return Err(failure!("`command` has more than {most} bytes; write a script with write_file and run that"));
        }
        Ok(argv)
    }

    /// The command as shown in a list.
    fn show(&self) -> String {
        let text = match self {
            Self::Shell(text) => text.clone(),
            Self::Program(words) => words.join(" "),
        };
        super::text::cut_line(&text, 200).0
    }
}

/// Treats `null` like an absent value, because models write `null` for what they leave out.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Returns the value or its default, or fails if it is out of range.
fn within(name: &str, value: Option<u64>, default: u64, range: RangeInclusive<u64>) -> Result<u64, ToolFailure> {
    match value.unwrap_or(default) {
        value if range.contains(&value) => Ok(value),
        value => Err(failure!("`{name}` must be from {} to {}, not {value}", range.start(), range.end())),
    }
}

/// How a tool affects its environment. Becomes annotations, which help clients to decide whether to ask the user.
#[derive(Clone, Copy)]
enum ToolEffect {
    /// Changes nothing.
    Reads,
    /// Changes something. A second identical call has no further effect.
    Sets,
    /// Changes something with each call.
    Changes,
    /// Can do anything that a program can do.
    Anything,
}

/// One tool.
struct ToolSpec {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    effect: ToolEffect,
    input: fn() -> Arc<JsonObject>,
    output: fn() -> Arc<JsonObject>,
}

/// Declares all tools: name, title, effect, function with its argument and result types, and the description for the model.
macro_rules! tools {
    ($($name:literal, $title:literal, $effect:ident, $function:path[$arguments:ty] -> $answer:ty: $description:literal;)*) => {
        const TOOLS: &[ToolSpec] = &[$(ToolSpec {
            name: $name,
            title: $title,
            description: $description,
            effect: ToolEffect::$effect,
            input: schema::<$arguments>,
            output: schema::<$answer>,
        }),*];

        async fn call_tool(
            name: &str,
            call: &CallContext<'_>,
            arguments: JsonObject,
        ) -> Result<ToolReply, ToolFailure> {
            match name {
                $($name => with(arguments, |arguments| $function(call, arguments)).await,)*
                other => Err(failure!("unknown tool `{other}`")),
            }
        }
    };
}

tools! {
    "run_command", "Run a command", Anything, run::run[run::RunArguments] -> run::RunAnswer:
        "Runs a command to its end and returns its exit code, standard output and standard error. `command` is one \
        text for the shell, or an array of program and arguments, which needs no quoting. Nothing can be typed into it: its \
        standard input is empty. Of long output the beginning and the end are returned, and how many bytes are left out. When \
        `timeout_ms` is over, or the call is cancelled, the command and everything it started is ended; what it wrote until then is \
        returned. What it leaves running in the background is ended soon where it holds the output open, and with this session at the \
        latest: use start_process for servers and watchers.";
    "start_process", "Start a process", Anything, processes::start[processes::StartArguments] -> processes::StartAnswer:
        "Starts a program that keeps running, such as a server, a watcher or an interactive program, and returns at once with \
        its `process_id`. Read what it writes with read_output, write to it with write_stdin, end it with signal_process. It \
        ends with this session at the latest.";
    "read_output", "Read what a process wrote", Reads, processes::read[processes::ReadOutputArguments] -> processes::ReadOutputAnswer:
        "Returns what a process wrote since the last read_output (or after `after`, a cursor from an earlier answer), and \
        whether it has ended. With `wait_ms` it waits for something new. Output that is no longer kept is told as \
        `gap_bytes`.";
    "write_stdin", "Write to a process", Changes, processes::write[processes::WriteStdinArguments] -> processes::WriteStdinAnswer:
        "Writes a text to the standard input of a process that start_process has started, and closes it with `close`. Lines need \
        their line end: a program that reads lines waits for it.";
    "signal_process", "End or signal a process", Changes, processes::signal[processes::SignalArguments] -> processes::SignalAnswer:
        "Ends a process and everything it started (`signal` absent or `terminate`: SIGTERM, and SIGKILL where that does not \
        help within `grace_ms`), or sends one signal such as INT, HUP or KILL to its process group.";
    "list_processes", "List processes", Reads, processes::list[processes::ListProcessesArguments] -> processes::ListProcessesAnswer:
        "Lists the processes that start_process has started in this session, each with its state.";
    "read_file", "Read a file", Reads, files::read[files::ReadFileArguments] -> files::ReadFileAnswer:
        "Returns lines of a text file with their numbers: by default the first 2000, else `limit` lines from line `offset` on. \
        Long lines are cut and marked as cut. The numbers and the tab behind them are not part of the file.";
    "write_file", "Write a file", Sets, files::write[files::WriteFileArguments] -> files::WriteFileAnswer:
        "Writes a whole file: makes it, with the directories above it, or replaces it in one step, so that no reader sees a \
        partial file. To change a part of a file use edit_file.";
    "edit_file", "Edit a file", Changes, edit::edit[edit::EditArguments] -> edit::EditAnswer:
        "Replaces `old` by `new` in a file. `old` must be in the file exactly once, with all its blanks and line ends: take \
        enough of the lines around it to make it unique, or set `replace_all`. Nothing is changed if it is not found, found more than \
        once, or if another writer changes the file at the same time.";
    "list_directory", "List a directory", Reads, files::list[files::ListDirectoryArguments] -> files::ListDirectoryAnswer:
        "Lists the entries of a directory in the order of their names: kind, size, and where links lead.";
    "search_files", "Search files", Reads, search::search[search::SearchArguments] -> search::SearchAnswer:
        "Searches a tree. With `pattern`, a regular expression, it returns the lines that match, in files whose paths match `glob` \
        where that is given; with `glob` alone, the paths that match. What .gitignore leaves out is not searched, nor are hidden \
        files, unless `all` is set.";
}

/// Tools that only read, but are useless without processes.
const OF_PROCESSES: [&str; 2] = ["read_output", "list_processes"];

/// The tools that a server offers.
pub(super) fn offered(read_only: bool) -> Vec<Tool> {
    let is_offered = |spec: &&ToolSpec| {
        !read_only || (matches!(spec.effect, ToolEffect::Reads) && !OF_PROCESSES.contains(&spec.name))
    };
    TOOLS.iter().filter(is_offered).map(tool).collect()
}

/// Whether a tool exists, even if it is not offered.
pub(super) fn exists(name: &str) -> bool {
    TOOLS.iter().any(|spec| spec.name == name)
}

/// Calls an offered tool.
pub(super) async fn dispatch(name: &str, call: &CallContext<'_>, arguments: JsonObject) -> CallToolResult {
    match call_tool(name, call, arguments).await {
        Ok(ToolReply { text, data, is_error }) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
            result.structured_content = Some(data);
            result.is_error = Some(is_error);
            result
        }
        Err(failure) => failure.into_result(),
    }
}

/// Parses the arguments and calls the tool. Parse errors are results, not protocol errors, so that the model sees and corrects them.
async fn with<A: DeserializeOwned, F: Future<Output = Result<ToolReply, ToolFailure>>>(
    arguments: JsonObject,
    tool: impl FnOnce(A) -> F,
) -> Result<ToolReply, ToolFailure> {
    match serde_json::from_value(Value::Object(arguments)) {
        Ok(arguments) => tool(arguments).await,
        Err(error) => Err(failure!("the arguments cannot be used: {error}")),
    }
}

fn tool(spec: &ToolSpec) -> Tool {
    let hints = ToolAnnotations::with_title(spec.title);
    let hints = match spec.effect {
        ToolEffect::Reads => hints.read_only(true).destructive(false).idempotent(true).open_world(false),
        ToolEffect::Sets => hints.read_only(false).destructive(true).idempotent(true).open_world(false),
        ToolEffect::Changes => hints.read_only(false).destructive(true).idempotent(false).open_world(false),
        ToolEffect::Anything => hints.read_only(false).destructive(true).idempotent(false).open_world(true),
    };
    Tool::new(spec.name, spec.description, (spec.input)())
        .with_title(spec.title)
        .with_raw_output_schema((spec.output)())
        .with_annotations(hints)
}

/// The schema of a type, without references and without non-standard formats, because some clients understand neither.
fn schema<T: JsonSchema>() -> Arc<JsonObject> {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    strip(&mut schema);
    let Value::Object(mut object) = schema else { unreachable!("the arguments and results of tools are structs") };
    object.remove("title");
    object.remove("description");
    // A struct without fields has no `properties`, but some clients require the key.
    object.entry("properties").or_insert_with(|| Value::Object(JsonObject::new()));
    Arc::new(object)
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(object) => {
            let is_ours = |format: &Value| format.as_str().is_some_and(|format| format.contains("int"));
            object.retain(|key, value| key != "format" || !is_ours(value));
            object.values_mut().for_each(strip);
        }
        Value::Array(values) => values.iter_mut().for_each(strip),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_described_for_a_model() {
        let all = offered(false);
        assert_eq!(all.len(), 11);
        for tool in &all {
            let text = serde_json::to_string(tool).unwrap();
            assert!(!text.contains("$ref") && !text.contains("uint"), "{text}");
            assert_eq!(tool.input_schema["type"], "object", "{text}");
            assert_eq!(tool.input_schema["additionalProperties"], false, "{text}");
            assert_eq!(tool.output_schema.as_ref().unwrap()["type"], "object", "{text}");
            assert!(tool.input_schema["properties"].is_object(), "{text}");
            assert!(tool.output_schema.as_ref().unwrap()["properties"].is_object(), "{text}");
            let described = |schema: &JsonObject| {
                let all = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
                all.filter(|(_, property)| property.get("description").is_none()).count()
            };
            assert_eq!(described(&tool.input_schema), 0, "{text}");
            assert_eq!(described(tool.output_schema.as_ref().unwrap()), 0, "{text}");
            let hints = tool.annotations.as_ref().unwrap();
            assert!(hints.read_only_hint.is_some() && hints.open_world_hint.is_some(), "{text}");
        }
    }

    #[test]
    fn a_read_only_server_offers_nothing_that_changes_or_runs() {
        let names: Vec<String> = offered(true).iter().map(|tool| tool.name.to_string()).collect();
        assert_eq!(names, ["read_file", "list_directory", "search_files"]);
        for tool in offered(true) {
            assert_eq!(tool.annotations.unwrap().read_only_hint, Some(true));
        }
    }

    #[test]
    fn a_command_is_a_text_or_words_and_nothing_else() {
        let read = |value: Value| serde_json::from_value::<CommandArgument>(value).map_err(|error| error.to_string());
        let argv = |value| read(value).unwrap().argv("/bin/sh");
        assert_eq!(argv("a | b".into()), Ok(["/bin/sh", "-c", "a | b"].map(str::to_owned).to_vec()));
        assert_eq!(argv(serde_json::json!(["a", "b c"])), Ok(["a", "b c"].map(str::to_owned).to_vec()));
        assert!(argv(" \n".into()).is_err());
        assert!(argv(serde_json::json!([])).is_err());
        assert!(argv(serde_json::json!([""])).is_err());
        assert!(argv("x".repeat(limits::COMMAND_BYTES + 1).into()).is_err());
        for wrong in [serde_json::json!(7), serde_json::json!({}), serde_json::json!([1]), Value::Null] {
            assert!(read(wrong).unwrap_err().contains("must be a string for the shell, or an array of strings"));
        }
    }

    #[test]
    fn numbers_are_held_to_their_bounds() {
        assert_eq!(within("n", None, 7, 1..=9), Ok(7));
        assert_eq!(within("n", Some(9), 7, 1..=9), Ok(9));
        assert_eq!(within("n", Some(10), 7, 1..=9), Err(failure!("`n` must be from 1 to 9, not 10")));
    }
}
