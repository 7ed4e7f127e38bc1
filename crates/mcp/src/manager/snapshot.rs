//! Queries every server through a temporary manager, without affecting the servers of another manager.

use std::collections::BTreeMap;

use rmcp::model::{Prompt, Resource, ResourceTemplate, ServerPeerInfo, Tool};
use serde::Serialize;

use super::{Manager, ServerStatus};
use crate::config::{ServerConfig, ServerTransport};

/// How much to query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotDetail {
    Full,
    /// Tools and authentication, but no resources, resource templates or prompts.
    ToolsAndAuthOnly,
}

/// All servers, by name.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Snapshot {
    pub servers: BTreeMap<String, ServerSnapshot>,
}

/// The state of one server and what it offers.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerSnapshot {
    /// The result of its start.
    pub status: ServerStatus,
    pub auth: ServerAuth,
    /// The server's information from the handshake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<ServerPeerInfo>,
    /// The tools under the server's own names, without those that the configuration filters out.
    pub tools: Vec<Tool>,
    /// Empty if not queried, or if the list failed.
    pub resources: Vec<Resource>,
    /// Empty if not queried, or if the list failed.
    pub resource_templates: Vec<ResourceTemplate>,
    /// Empty if not queried, or if the list failed.
    pub prompts: Vec<Prompt>,
}

/// How we authenticate to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ServerAuth {
    /// Not supported: the server is a program on stdio.
    Unsupported,
    /// No token is configured, and the server has not required authentication.
    NotNeeded,
    /// With the token whose variable the configuration names.
    BearerToken,
    /// The server requires authentication, and we sent no token or one that it rejected.
    Required,
}

impl ServerAuth {
    fn of(config: &ServerConfig, status: &ServerStatus) -> Self {
        match (&config.transport, status) {
            (_, ServerStatus::AuthenticationRequired { .. }) => Self::Required,
            (ServerTransport::Stdio(_), _) => Self::Unsupported,
            (ServerTransport::Http(http), _) if http.bearer_token_env_var.is_some() => Self::BearerToken,
            (ServerTransport::Http(_), _) => Self::NotNeeded,
        }
    }
}

/// Starts all servers of a manager, queries them, and shuts the manager down.
pub(super) async fn take(manager: Manager, detail: SnapshotDetail) -> Snapshot {
    // A failed `required` server is not an error for a snapshot.
    drop(manager.start_all().await);
    let (mut resources, mut templates, mut prompts) = match detail {
        SnapshotDetail::ToolsAndAuthOnly => Default::default(),
        SnapshotDetail::Full => tokio::join!(manager.resources(), manager.resource_templates(), manager.prompts()),
    };
    let mut tools: BTreeMap<String, Vec<Tool>> = BTreeMap::new();
    for tool in manager.tools().await {
        tools.entry(tool.server).or_default().push(tool.tool);
    }
    let mut snapshot = Snapshot::default();
    for (name, status) in manager.status() {
        let Some(config) = manager.context.settings.config.servers.get(&name) else { continue };
        let server = ServerSnapshot {
            auth: ServerAuth::of(config, &status),
            status,
            info: manager.info(&name),
            tools: tools.remove(&name).unwrap_or_default(),
            resources: resources.remove(&name).unwrap_or_default(),
            resource_templates: templates.remove(&name).unwrap_or_default(),
            prompts: prompts.remove(&name).unwrap_or_default(),
        };
        snapshot.servers.insert(name, server);
    }
    manager.shutdown().await;
    snapshot
}
