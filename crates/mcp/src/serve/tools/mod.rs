//! The tools of a session: a table with their descriptions and schemas, and the dispatch from a tool's name to its function.
//!
//! A tool takes its own argument type and returns a [`ToolReply`] or a [`ToolFailure`]. The client gets either one as the result of the
//! call, not as a protocol error. A failure has `isError` and a text that says what to do next. `run` runs commands, `processes` handles
//! processes that outlive a call and keeps them in a `process_table`, `files` and `edit` work on files, and `search` searches directory
//! trees.

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

/// Time limit for changing a file. It leaves time to reconnect after a cut link.
const CHANGE_WITHIN: Duration = Duration::from_secs(60);

/// How long a cancelled change may take to complete. Shorter than the time that calls have when the server shuts down.
const SETTLE_WITHIN: Duration = Duration::from_secs(2);

/// How many bytes of a command are shown in texts and lists.
const SHOWN_COMMAND_BYTES: usize = 200;

/// The advice for a path that the sandbox denies.
const OUTSIDE_ROOT: &str =
    "; a path must be below the root of this server, if it has one, and must not be one of the server's own files";

/// The advice for a change whose outcome is unknown.
const MAY_HAVE_CHANGED: &str = "; the change may have been made, so check before you try again";

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
    /// Resolves when the client cancels the call or the server shuts down. Returns the reason.
    async fn cancelled(&self) -> &'static str {
        let mut ending = self.server.ending.subscribe();
        // Both arms are cancel safe.
        tokio::select! {
            () = self.context.ct.cancelled() => "the call was cancelled",
            () = until_set(&mut ending) => "the server is shutting down",
        }
    }

    /// Runs an operation that is dropped if the call is cancelled. Except for `signal_process`, such operations change nothing.
    async fn unless_cancelled<T>(
        &self,
        operation: impl Future<Output = Result<T, ToolFailure>>,
    ) -> Result<T, ToolFailure> {
        tokio::select! {
            done = operation => done,
            why = self.cancelled() => Err(failure!("{why}")),
        }
    }

    /// Runs an operation that changes something. After a cancellation it still gets a short time to complete. Its total time is limited.
    async fn until_settled<T>(
        &self,
        operation: impl Future<Output = Result<T, ToolFailure>>,
    ) -> Result<T, ToolFailure> {
        let out_of_time = async {
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
            done = operation => done,
            why = out_of_time => Err(failure!("{why}{MAY_HAVE_CHANGED}")),
        }
    }
}

/// The answer of a tool: a text for the model, and the same content as structured data.
#[derive(Debug)]
pub(super) struct ToolReply {
    text: String,
    data: Value,
    is_error: bool,
}

impl ToolReply {
    fn new(text: impl Into<String>, data: &impl Serialize) -> Self {
        // Cannot fail: the result types are structs of numbers, texts and lists.
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
                "; all processes of this session are gone; call the tool again to continue in a new one"
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
            // An operation that changes nothing can fail with this error too.
            fs::FileErrorKind::Disconnected => "; if this was a change, check it before you try again",
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
        super::text::cut_line(&text, SHOWN_COMMAND_BYTES).0
    }
}

/// Treats `null` like an absent value, because models write `null` for what they leave out.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Returns the value or its default, or fails if it is out of range.
fn in_range(name: &str, value: Option<u64>, default: u64, range: RangeInclusive<u64>) -> Result<u64, ToolFailure> {
    match value.unwrap_or(default) {
        value if range.contains(&value) => Ok(value),
        value => Err(failure!("`{name}` must be between {} and {}, not {value}", range.start(), range.end())),
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
                $($name => parse_and_call(arguments, |arguments| $function(call, arguments)).await,)*
                other => Err(failure!("unknown tool `{other}`")),
            }
        }
    };
}

tools! {
    "run_command", "Run a command", Anything, run::run[run::RunArguments] -> run::RunAnswer:
        "Runs a command until it exits, and returns its exit code, standard output and standard error. `command` is one string for the \
        shell, or an array of the program and its arguments, which needs no quoting. Standard input is empty. If the output is long, only \
        its beginning and its end are returned, with the number of bytes left out between them. When `timeout_ms` has passed or the call \
        is cancelled, the command and everything it started are terminated, and the output so far is returned. Background processes that \
        keep the output open are terminated about a second after the command exits, and all others when this session ends: use \
        start_process for servers and watchers.";
    "start_process", "Start a process", Anything, processes::start[processes::StartArguments] -> processes::StartAnswer:
        "Starts a program that keeps running, such as a server, a watcher or an interactive program, and returns its `process_id` at \
        once. Read its output with read_output, write to it with write_stdin, and end it with signal_process. A process that is still \
        running when this session ends is killed.";
    "read_output", "Read the output of a process", Reads, processes::read[processes::ReadOutputArguments] -> processes::ReadOutputAnswer:
        "Returns the output of a process since the last read_output, or since `after`, a cursor from an earlier answer, and whether the \
        process has exited. With `wait_ms` it waits for new output. Old output that was not read in time may be dropped; `gap_bytes` \
        says how much.";
    "write_stdin", "Write to a process", Changes, processes::write[processes::WriteStdinArguments] -> processes::WriteStdinAnswer:
        "Writes text to the standard input of a process that start_process has started. With `close`, closes standard input after it. \
        End each line with a line feed: a program that reads lines waits for it.";
    "signal_process", "End or signal a process", Changes, processes::signal[processes::SignalArguments] -> processes::SignalAnswer:
        "Without `signal`, or with `terminate`, ends a process and everything it started: sends SIGTERM, and SIGKILL if it is still \
        running after `grace_ms`. Otherwise sends one signal, such as INT, HUP or KILL, to the process group.";
    "list_processes", "List processes", Reads, processes::list[processes::ListProcessesArguments] -> processes::ListProcessesAnswer:
        "Lists the processes that start_process has started in this session, each with its state.";
    "read_file", "Read a file", Reads, files::read[files::ReadFileArguments] -> files::ReadFileAnswer:
        "Returns numbered lines of a text file: by default the first 2000, otherwise `limit` lines starting at line `offset`. Long lines \
        are truncated and marked. The number and the tab before each line are not part of the file.";
    "write_file", "Write a file", Sets, files::write[files::WriteFileArguments] -> files::WriteFileAnswer:
        "Writes a whole file: creates it, with missing parent directories, or replaces its content. `atomic` in the result says whether \
        the file was replaced in one step. To change a part of a file, use edit_file.";
    "edit_file", "Edit a file", Changes, edit::edit[edit::EditArguments] -> edit::EditAnswer:
        "Replaces `old` with `new` in a file. `old` must match exactly, including spaces and line ends, and occur exactly once: include \
        enough surrounding lines to make it unique, or set `replace_all`. The file stays unchanged if `old` is not found, if it occurs \
        more than once without `replace_all`, or if another writer keeps changing the file.";
    "list_directory", "List a directory", Reads, files::list[files::ListDirectoryArguments] -> files::ListDirectoryAnswer:
        "Lists the entries of a directory, sorted by name, with their kinds and sizes, and the targets of symbolic links.";
    "search_files", "Search files", Reads, search::search[search::SearchArguments] -> search::SearchAnswer:
        "Searches a directory tree. With `pattern`, a regular expression, it returns the matching lines; `glob` then limits the files by \
        path. With `glob` alone, it returns the matching paths. Hidden files and files that .gitignore excludes are skipped unless `all` \
        is set.";
}

/// Tools that only read, but are useless on a server that starts no processes.
const PROCESS_TOOLS: [&str; 2] = ["read_output", "list_processes"];

/// The tools that a server offers.
pub(super) fn offered(read_only: bool) -> Vec<Tool> {
    let is_offered = |spec: &&ToolSpec| {
        !read_only || (matches!(spec.effect, ToolEffect::Reads) && !PROCESS_TOOLS.contains(&spec.name))
    };
    TOOLS.iter().filter(is_offered).map(tool).collect()
}

/// Whether a tool exists, even if it is not offered.
pub(super) fn exists(name: &str) -> bool {
    TOOLS.iter().any(|spec| spec.name == name)
}

/// Calls a tool. The caller has checked that it is offered.
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
async fn parse_and_call<A: DeserializeOwned, F: Future<Output = Result<ToolReply, ToolFailure>>>(
    arguments: JsonObject,
    tool: impl FnOnce(A) -> F,
) -> Result<ToolReply, ToolFailure> {
    match serde_json::from_value(Value::Object(arguments)) {
        Ok(arguments) => tool(arguments).await,
        Err(error) => Err(failure!("invalid arguments: {error}")),
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

/// The schema of a type, without references and without the non-standard integer formats of schemars, because some clients reject both.
fn schema<T: JsonSchema>() -> Arc<JsonObject> {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    strip_integer_formats(&mut schema);
    let Value::Object(mut object) = schema else { unreachable!("the arguments and results of tools are structs") };
    object.remove("title");
    object.remove("description");
    // A struct without fields has no `properties`, but some clients require the key.
    object.entry("properties").or_insert_with(|| Value::Object(JsonObject::new()));
    Arc::new(object)
}

/// Removes formats such as `uint64`.
fn strip_integer_formats(value: &mut Value) {
    match value {
        Value::Object(object) => {
            let is_integer = |format: &Value| format.as_str().is_some_and(|format| format.contains("int"));
            object.retain(|key, value| key != "format" || !is_integer(value));
            object.values_mut().for_each(strip_integer_formats);
        }
        Value::Array(values) => values.iter_mut().for_each(strip_integer_formats),
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
            let undescribed = |schema: &JsonObject| {
                let all = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
                all.filter(|(_, property)| property.get("description").is_none()).count()
            };
            assert_eq!(undescribed(&tool.input_schema), 0, "{text}");
            assert_eq!(undescribed(tool.output_schema.as_ref().unwrap()), 0, "{text}");
            let hints = tool.annotations.as_ref().unwrap();
            assert!(hints.read_only_hint.is_some() && hints.open_world_hint.is_some(), "{text}");
        }
    }

    #[test]
    fn a_read_only_server_offers_only_tools_that_read_files() {
        let names: Vec<String> = offered(true).iter().map(|tool| tool.name.to_string()).collect();
        assert_eq!(names, ["read_file", "list_directory", "search_files"]);
        for tool in offered(true) {
            assert_eq!(tool.annotations.unwrap().read_only_hint, Some(true));
        }
    }

    #[test]
    fn a_command_is_a_string_or_an_array_of_strings() {
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
    fn a_number_out_of_range_is_refused() {
        assert_eq!(in_range("n", None, 7, 1..=9), Ok(7));
        assert_eq!(in_range("n", Some(9), 7, 1..=9), Ok(9));
        assert_eq!(in_range("n", Some(10), 7, 1..=9), Err(failure!("`n` must be between 1 and 9, not 10")));
    }
}
