//! One MCP session: handles its requests, and owns the table of its processes and its limit of concurrent calls.
//!
//! Dropping the handler ends the session and its executor session, with everything that was started in it.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, Implementation, InitializeRequestParams, InitializeResult,
        ListToolsResult, PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};
use tokio::sync::Semaphore;

use super::{
    McpServer, limits,
    process_sessions::ProcessSession,
    tools::{self, CallContext, ProcessTable},
};

/// The transport of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientTransport {
    /// Stdio: the connection is the session.
    Streams,
    /// Streamable HTTP: a session begins with `initialize`.
    Http,
}

pub(super) struct SessionHandler {
    server: Arc<McpServer>,
    transport: ClientTransport,
    table: ProcessTable,
    process_session: ProcessSession,
    calls: Semaphore,
    /// The client has sent `initialize`. Over HTTP, newer clients may send requests without a session; then processes would have no owner.
    is_initialized: AtomicBool,
}

impl SessionHandler {
    pub(super) fn new(server: Arc<McpServer>, transport: ClientTransport) -> Self {
        Self {
            process_session: ProcessSession::new(Arc::clone(&server)),
            server,
            transport,
            table: ProcessTable::default(),
            calls: Semaphore::new(limits::CALLS_OF_SESSION),
            is_initialized: AtomicBool::new(false),
        }
    }
}

impl ServerHandler for SessionHandler {
    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        context.peer.set_peer_info(request.clone());
        self.is_initialized.store(true, Ordering::Release);
        self.negotiate_initialize(&request)
    }

    fn get_info(&self) -> ServerConfig {
        let implementation = Implementation::new("exec-server", env!("CARGO_PKG_VERSION")).with_title("exec-server");
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(implementation)
            .with_instructions(&*self.server.instructions)
    }

    /// Over HTTP, only the protocol versions that have sessions, because processes belong to a session.
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(match self.transport {
            ClientTransport::Streams => ProtocolVersion::KNOWN_VERSIONS,
            ClientTransport::Http => ProtocolVersion::known_up_to(&ProtocolVersion::V_2025_11_25),
        })
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.server.tools.clone()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.server.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        // A client should know the listed names, so another name is a protocol error, not a tool failure for the model.
        let Some(tool) = self.server.tools.iter().find(|tool| tool.name == request.name) else {
            let name: String = request.name.chars().take(64).collect();
            // The tool may exist but not be offered in read-only mode.
            let text = match self.server.read_only && tools::exists(&name) {
                true => format!("the tool `{name}` is not available: this server was started read-only"),
                false => format!("unknown tool `{name}`; `tools/list` returns the available ones"),
            };
            return Err(ErrorData::invalid_params(text, None));
        };
        // Held until the call has ended.
        let (Ok(_session_permit), Ok(_server_permit)) = (self.calls.try_acquire(), self.server.calls.try_acquire())
        else {
            let most = limits::CALLS_OF_SESSION;
            let all = limits::CALLS;
            let text =
                format!("limit reached: {most} calls per session, {all} in all sessions; wait for a call to end");
            return Ok(tools::ToolFailure(text).into_result().into());
        };
        let call = CallContext {
            server: &self.server,
            process_session: &self.process_session,
            table: &self.table,
            context: &context,
            has_session: self.transport == ClientTransport::Streams || self.is_initialized.load(Ordering::Acquire),
        };
        let arguments = request.arguments.unwrap_or_default();
        Ok(tools::dispatch(&tool.name, &call, arguments).await.into())
    }
}
