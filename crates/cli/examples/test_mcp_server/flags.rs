//! The command line of the test server: one flag for each thing that a test can ask for.
//! Must not act on any.

/// The text of `--help`.
pub(crate) const HELP: &str = "\
A test-only MCP server on standard streams, or with --http on streamable HTTP.

Usage: test_mcp_server [FLAGS]

It answers initialize, ping, tools, resources, resource templates and prompts, and ends at the end of its standard input.

Tools:
  echo {message, env_var?}    the message, the value of a variable [default: MCP_TEST_VALUE], and the _meta of the call
  image {detail?}             a picture of one pixel, with codex/imageDetail
  contents {}                 one item of every kind: text, image, audio, resource, link
  barrier {name?, parties?}   returns when so many calls [default: 2] are in; read_only_barrier is hinted as read-only
  sleep {ms, steps?}          with progress in steps; ends unanswered when it is cancelled
  elicit {message?, schema?}  asks the user, and returns the answer
  crash {code?}               exits without an answer
  fail {message?}             a result that is an error
  error {code?, message?}     an error of the protocol
  cwd {}, env {}, pid {}      what the process has
  spawn {}                    starts a `sleep 1000`, and returns its pid
  large {bytes}               so many letters
  stats {}                    what was called and cancelled so far
  add_tool {}                 one tool more, with tools/list_changed

Where and how:
  --http ADDR             listen there (port 0: any) on /mcp, and print the URL on standard output
  --page-size N           items on a page of a list [default: 2 for resources and templates, all for the rest]
  --journal FILE          append a line of JSON for each start, request, notification and end of input
  --sandbox-state-meta    announce the experimental capability codex/sandbox-state-meta
  --protocol VERSION      answer initialize with this version, whatever was asked for
  --stderr TEXT           say this on standard error at the start
  --ignore-eof            go on after the end of standard input; for SIGTERM use: sh -c 'trap \"\" TERM; exec ...'

Misbehaviour:
  --exit-at-once CODE     exit with this code before anything is read
  --fail-starts N         exit with 1 at the first N starts that --journal counts
  --fork-and-exit         leave a child that keeps the streams, and exit
  --slow-start MS         read nothing for so long
  --stdout-logs           print lines on standard output that are no messages, before every answer
  --invalid-utf8          print a line that is not UTF-8 before every answer
  --long-line BYTES       print a message of so many bytes before the answer to the first tools/call
  --half-message          print half of the answer to the first tools/call, and exit
  --never-answer METHOD   do not answer this method; `all` for none at all; repeatable
  --close-stdout          close standard output after the first answer, and go on
  --flood-stderr MB       write so many megabytes to standard error
  --repeat-cursor         give the same cursor with every page
  --endless-pages         give a new cursor with every page
  --long-cursor BYTES     give a cursor of so many bytes with the first page
  --bad-tools             list a tool without a name and one whose schema is no object, beside the good ones
  --http-status CODE      answer every request over HTTP with this status
  --http-token TOKEN      answer 401 without this bearer token
  --expire-after N        answer 404 to a session after its N requests; a new one can be made
  --no-get                answer 405 to GET, so that there is no stream of the server's own
  --no-session            give no session id over HTTP

Over HTTP, POST /control with {\"status\": CODE, \"count\": N, \"method\": METHOD?} lets the next N requests fail so,
and {\"expire\": true} ends all sessions.
";

/// The parsed flags.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    pub(crate) http: Option<String>,
    pub(crate) page_size: Option<usize>,
    pub(crate) journal: Option<String>,
    pub(crate) sandbox_state_meta: bool,
    pub(crate) protocol: Option<String>,
    pub(crate) stderr: Option<String>,
    pub(crate) ignore_eof: bool,
    pub(crate) exit_at_once: Option<u8>,
    pub(crate) fail_starts: usize,
    pub(crate) fork_and_exit: bool,
    pub(crate) slow_start_ms: u64,
    pub(crate) stdout_logs: bool,
    pub(crate) invalid_utf8: bool,
    pub(crate) long_line: Option<usize>,
    pub(crate) half_message: bool,
    pub(crate) never_answer: Vec<String>,
    pub(crate) close_stdout: bool,
    pub(crate) flood_stderr: Option<usize>,
    pub(crate) repeat_cursor: bool,
    pub(crate) endless_pages: bool,
    pub(crate) long_cursor: Option<usize>,
    pub(crate) bad_tools: bool,
    pub(crate) http_status: Option<u16>,
    pub(crate) http_token: Option<String>,
    pub(crate) expire_after: Option<u64>,
    pub(crate) no_get: bool,
    pub(crate) no_session: bool,
}

/// Parses the flags. `None` for `--help`.
pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Flags>, String> {
    let mut flags = Flags::default();
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("`{flag}` needs a value"));
        match flag.as_str() {
            "--help" | "-h" => return Ok(None),
            "--http" => flags.http = Some(value()?),
            "--page-size" => flags.page_size = Some(number(&flag, &value()?)?),
            "--journal" => flags.journal = Some(value()?),
            "--sandbox-state-meta" => flags.sandbox_state_meta = true,
            "--protocol" => flags.protocol = Some(value()?),
            "--stderr" => flags.stderr = Some(value()?),
            "--ignore-eof" => flags.ignore_eof = true,
            "--exit-at-once" => flags.exit_at_once = Some(number(&flag, &value()?)?),
            "--fail-starts" => flags.fail_starts = number(&flag, &value()?)?,
            "--fork-and-exit" => flags.fork_and_exit = true,
            "--slow-start" => flags.slow_start_ms = number(&flag, &value()?)?,
            "--stdout-logs" => flags.stdout_logs = true,
            "--invalid-utf8" => flags.invalid_utf8 = true,
            "--long-line" => flags.long_line = Some(number(&flag, &value()?)?),
            "--half-message" => flags.half_message = true,
            "--never-answer" => flags.never_answer.push(value()?),
            "--close-stdout" => flags.close_stdout = true,
            "--flood-stderr" => flags.flood_stderr = Some(number(&flag, &value()?)?),
            "--repeat-cursor" => flags.repeat_cursor = true,
            "--endless-pages" => flags.endless_pages = true,
            "--long-cursor" => flags.long_cursor = Some(number(&flag, &value()?)?),
            "--bad-tools" => flags.bad_tools = true,
            "--http-status" => flags.http_status = Some(number(&flag, &value()?)?),
            "--http-token" => flags.http_token = Some(value()?),
            "--expire-after" => flags.expire_after = Some(number(&flag, &value()?)?),
            "--no-get" => flags.no_get = true,
            "--no-session" => flags.no_session = true,
            _ => return Err(format!("`{flag}` is unknown")),
        }
    }
    if flags.fail_starts > 0 && flags.journal.is_none() {
        return Err("`--fail-starts` counts in a `--journal`".to_owned());
    }
    Ok(Some(flags))
}

fn number<N: std::str::FromStr>(flag: &str, text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("`{flag}` needs a number that fits, not `{text}`"))
}
