//! A look at every server through a temporary manager. Must not touch what runs elsewhere.

use std::collections::BTreeMap;

use rmcp::model::{Prompt, Resource, ResourceTemplate, ServerPeerInfo, Tool};
use serde::Serialize;

use super::{Manager, Status};
use crate::config::{ServerConfig, Way};

/// How much is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Everything.
    Full,
    /// Tools and authentication; no resources, templates and prompts.
    ToolsAndAuthOnly,
}

/// Every server, by its name.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Snapshot {
    /// The servers.
    pub servers: BTreeMap<String, ServerSnapshot>,
}

/// What one server is and has.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerSnapshot {
    /// How its start went.
    pub status: Status,
    /// How one proves to it who one is.
    pub auth: Auth,
    /// What it said of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<ServerPeerInfo>,
    /// Its tools under their own names, without those that the configuration filters out.
    pub tools: Vec<Tool>,
    /// Its resources; empty if they were not looked at, or could not be listed.
    pub resources: Vec<Resource>,
    /// Its templates; likewise.
    pub resource_templates: Vec<ResourceTemplate>,
    /// Its prompts; likewise.
    pub prompts: Vec<Prompt>,
}

/// How one proves to a server who one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Auth {
    /// Not at all: it is a program.
    Unsupported,
    /// Nobody asked.
    NotNeeded,
    /// By a token that the configuration names.
    BearerToken,
    /// It wants a proof that it was not given.
    Required,
}

impl Auth {
    fn of(config: &ServerConfig, status: &Status) -> Self {
        match (&config.way, status) {
            (_, Status::AuthenticationRequired { .. }) => Self::Required,
            (Way::Stdio(_), _) => Self::Unsupported,
            (Way::Http(http), _) if http.bearer_token_env_var.is_some() => Self::BearerToken,
            (Way::Http(_), _) => Self::NotNeeded,
        }
    }
}

/// Starts all servers of a manager, looks at them, and ends it.
pub(super) async fn take(manager: Manager, detail: Detail) -> Snapshot {
    // Who is required does not matter to one who only looks.
    drop(manager.start_all().await);
    let (resources, templates, prompts) = match detail {
        Detail::ToolsAndAuthOnly => Default::default(),
        Detail::Full => tokio::join!(manager.resources(), manager.resource_templates(), manager.prompts()),
    };
    let (mut resources, mut templates, mut prompts) = (resources, templates, prompts);
    let mut tools: BTreeMap<String, Vec<Tool>> = BTreeMap::new();
    for tool in manager.tools().await {
        tools.entry(tool.server).or_default().push(tool.tool);
    }
    let mut snapshot = Snapshot::default();
    for (name, status) in manager.status() {
        let Some(config) = manager.context.settings.config.servers.get(&name) else { continue };
        let server = ServerSnapshot {
            auth: Auth::of(config, &status),
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
