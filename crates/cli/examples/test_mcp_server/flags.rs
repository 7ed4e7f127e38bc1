//! The command line of the test server: one flag for each thing that a test can ask for.
//! Must not act on any.

use clap::Parser;

/// A test-only MCP server on standard streams, or with --http on streamable HTTP.
///
/// It answers initialize, ping, tools, resources, resource templates and prompts, and ends at the end of its standard input.
///
/// Tools:
///   echo {message, env_var?}    the message, the value of a variable [default: MCP_TEST_VALUE], and the _meta of the call
///   image {detail?}             a picture of one pixel, with codex/imageDetail
///   contents {}                 one item of every kind: text, image, audio, resource, link
///   barrier {name?, parties?}   returns when this number of calls [default: 2] has arrived; read_only_barrier is hinted as read-only
///   sleep {ms, steps?}          with progress in steps; ends unanswered when it is cancelled
///   elicit {message?, schema?}  asks the user, and returns the answer
///   crash {code?}               exits without an answer
///   fail {message?}             a result that is an error
///   error {code?, message?}     an error of the protocol
///   cwd {}, env {}, pid {}      what the process has
///   spawn {}                    starts a `sleep 1000`, and returns its pid
///   large {bytes}               this number of letters
///   stats {}                    the calls and cancellations until now
///   add_tool {}                 one tool more, with tools/list_changed
///
/// Over HTTP, POST /control with {"status": CODE, "count": N, "method": METHOD?} lets the next N requests fail so, and
/// {"expire": true} ends all sessions.
#[derive(Debug, Parser)]
#[command(name = "test_mcp_server", verbatim_doc_comment)]
pub(crate) struct Flags {
    /// Listen there (port 0: any) on /mcp, and print the URL on standard output.
    #[arg(long)]
    pub(crate) http: Option<String>,
    /// Items on a page of a list [default: 2 for resources and templates, all for the rest].
    #[arg(long)]
    pub(crate) page_size: Option<usize>,
    /// Append a line of JSON for each start, request, notification and end of input.
    #[arg(long)]
    pub(crate) journal: Option<String>,
    /// Announce the experimental capability codex/sandbox-state-meta.
    #[arg(long)]
    pub(crate) sandbox_state_meta: bool,
    /// Answer initialize with this version and ignore the one that the client requested.
    #[arg(long)]
    pub(crate) protocol: Option<String>,
    /// Print this on standard error at the start.
    #[arg(long)]
    pub(crate) stderr: Option<String>,
    /// Continue after the end of standard input; for SIGTERM use: sh -c 'trap "" TERM; exec ...'.
    #[arg(long)]
    pub(crate) ignore_eof: bool,
    /// Exit with this code before anything is read.
    #[arg(long)]
    pub(crate) exit_at_once: Option<u8>,
    /// Exit with 1 at the first starts, up to this number, which are counted in the journal.
    #[arg(long, default_value_t, requires = "journal")]
    pub(crate) fail_starts: usize,
    /// Leave a child that keeps the streams, and exit.
    #[arg(long)]
    pub(crate) fork_and_exit: bool,
    /// Read nothing for this time.
    #[arg(long = "slow-start", default_value_t)]
    pub(crate) slow_start_ms: u64,
    /// Print lines on standard output that are not messages, before every answer.
    #[arg(long)]
    pub(crate) stdout_logs: bool,
    /// Print a line that is not UTF-8 before every answer.
    #[arg(long)]
    pub(crate) invalid_utf8: bool,
    /// Print a message of this size before the answer to the first tools/call.
    #[arg(long)]
    pub(crate) long_line: Option<usize>,
    /// Print half of the answer to the first tools/call, and exit.
    #[arg(long)]
    pub(crate) half_message: bool,
    /// Do not answer this method; `all` for none at all; repeatable.
    #[arg(long)]
    pub(crate) never_answer: Vec<String>,
    /// Close standard output after the first answer, and continue.
    #[arg(long)]
    pub(crate) close_stdout: bool,
    /// Write this number of megabytes to standard error.
    #[arg(long)]
    pub(crate) flood_stderr: Option<usize>,
    /// Give the same cursor with every page.
    #[arg(long)]
    pub(crate) repeat_cursor: bool,
    /// Give a new cursor with every page.
    #[arg(long)]
    pub(crate) endless_pages: bool,
    /// Give a cursor of this size with the first page.
    #[arg(long)]
    pub(crate) long_cursor: Option<usize>,
    /// List a tool without a name and one whose schema is not an object, beside the good ones.
    #[arg(long)]
    pub(crate) bad_tools: bool,
    /// Answer every request over HTTP with this status.
    #[arg(long)]
    pub(crate) http_status: Option<u16>,
    /// Answer 401 without this bearer token.
    #[arg(long)]
    pub(crate) http_token: Option<String>,
    /// Answer 404 to a session after this number of its requests; a new one can be made.
    #[arg(long)]
    pub(crate) expire_after: Option<u64>,
    /// Answer 405 to GET, so that the server has no stream of its own.
    #[arg(long)]
    pub(crate) no_get: bool,
    /// Give no session id over HTTP.
    #[arg(long)]
    pub(crate) no_session: bool,
}
