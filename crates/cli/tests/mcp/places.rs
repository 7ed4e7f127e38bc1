//! The places where servers run, this program itself and an executor, and the check that nothing is left of them.

use std::ffi::OsString;

use crate::{mcp::soon, prelude::*};
use exec_server_client::{
    environment::{Choice, EnvironmentError, RemoteSpec},
    local::LocalConfig,
};
use exec_server_mcp::{
    config::{Config, Format},
    env::Variables,
    manager::{Hosts, Manager, Settings},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Embedded in this program.
    Local,
    /// On an executor.
    Remote,
}

/// A place that is ready.
pub(crate) struct Place {
    pub(crate) kind: Kind,
    dir: TempDir,
    server: Option<TestServer>,
    /// The managers that are shut down at the end.
    managers: Mutex<Vec<Arc<Manager>>>,
}

/// Runs one test at one place, and checks that nothing is left of it.
pub(crate) fn run(kind: Kind, test: impl AsyncFnOnce(&Place)) {
    bounded(async {
        let place = Place::open(kind);
        test(&place).await;
        place.end().await;
    });
}

/// Variables of our side, as a manager gets them.
pub(crate) fn variables(pairs: &[(&str, &str)]) -> Variables {
    let always = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8")];
    always.iter().chain(pairs).map(|(name, value)| (OsString::from(name), OsString::from(value))).collect()
}

impl Place {
    pub(crate) fn open(kind: Kind) -> Self {
        let dir = tempfile::Builder::new().prefix("exec-server-mcp-").tempdir().expect("make a private directory");
        let server = match kind {
            Kind::Local => None,
            Kind::Remote => Some(TestServer::builder().behind_proxy().env("ONLY_THERE", "yes").start()),
        };
        Self { kind, dir, server, managers: Mutex::default() }
    }

    /// The executor of a remote place.
    pub(crate) fn server(&self) -> &TestServer {
        self.server.as_ref().expect("an executor")
    }

    /// A path in a directory that only this test uses.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The name of the place in a configuration.
    pub(crate) fn environment(&self) -> &'static str {
        match self.kind {
            Kind::Local => "local",
            Kind::Remote => "remote",
        }
    }

    /// A configuration of test servers, each with name, flags and further lines.
    pub(crate) fn config(&self, servers: &[(&str, &[&str], &str)]) -> Config {
        let mut text = String::new();
        for (name, flags, more) in servers {
            let flags: Vec<String> = flags.iter().map(|flag| flag.replace("{dir}", &self.path(""))).collect();
            let mut entry = format!("[mcp_servers.{name}]\nargs = {flags:?}\n{more}\n");
            if !more.contains("command =") {
                entry += &format!("command = {:?}\n", testkit::test_mcp_server());
            }
            if !more.contains("environment =") {
                entry += &format!("environment = \"{}\"\n", self.environment());
            }
            text += &entry;
        }
        Config::parse(&text, "test.toml".as_ref(), Format::Toml).expect("a configuration")
    }

    /// The places for a manager; names and URLs are not looked up in any file.
    pub(crate) fn hosts(&self) -> Hosts {
        self.hosts_with(self.server.as_ref().map(|server| server.url().to_owned()))
    }

    /// The same with `remote` at this URL.
    pub(crate) fn hosts_with(&self, url: Option<String>) -> Hosts {
        let remote = match url {
            Some(url) => Choice::Remote(RemoteSpec::at("remote", &url).expect("a URL")),
            None => Choice::None,
        };
        Hosts::by_choice(self.local_config(), remote, None, choose)
    }

    fn local_config(&self) -> LocalConfig {
        let program = self.dir.path().join("exec-server");
        if !program.exists() {
            // A private path for the program, by which all its processes can be found.
            symlink(binary(), &program).expect("link the program");
        }
        LocalConfig {
            program: Some(program),
            environment: vec![("PATH".into(), "/usr/bin:/bin".into()), ("NOT_FOR_ALL".into(), "x".into())],
            cwd: Some(self.dir.path().to_owned()),
            ..LocalConfig::default()
        }
    }

    /// The settings of a manager for this place.
    pub(crate) fn settings(&self, config: Config) -> Settings {
        let mut settings = Settings::new(config);
        settings.variables = variables(&[]);
        settings
    }

    /// A manager that has started nothing.
    pub(crate) fn manager(&self, config: Config) -> Arc<Manager> {
        self.manager_with(self.settings(config), self.hosts())
    }

    /// The same with these settings and places.
    pub(crate) fn manager_with(&self, settings: Settings, hosts: Hosts) -> Arc<Manager> {
        let manager = Arc::new(Manager::new(settings, hosts));
        self.managers.lock().expect("no writer panics").push(Arc::clone(&manager));
        manager
    }

    /// A manager of test servers, each with name, flags and further lines.
    pub(crate) fn configured(&self, servers: &[(&str, &[&str], &str)]) -> Arc<Manager> {
        self.manager(self.config(servers))
    }

    /// A manager of one server `t` with these flags.
    pub(crate) fn one(&self, flags: &[&str]) -> Arc<Manager> {
        self.configured(&[("t", flags, "")])
    }

    /// The lines of a journal.
    pub(crate) fn journal(&self, name: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// How many lines of a journal have this member.
    pub(crate) fn journaled(&self, name: &str, member: &str, value: &str) -> usize {
        self.journal(name).iter().filter(|line| line[member] == value).count()
    }

    /// Every live process that belongs to the place, except the executor itself.
    pub(crate) fn processes(&self) -> BTreeSet<u32> {
        let roots = match &self.server {
            None => marked(&self.path("")),
            Some(server) => marked(server.mark()),
        };
        let all: BTreeSet<u32> = roots.iter().copied().chain(descendants(&roots)).collect();
        match &self.server {
            None => all,
            Some(_) => descendants(&roots).difference(&roots).copied().collect(),
        }
    }

    /// Shuts the managers down and checks that nothing is left.
    async fn end(self) {
        let managers = std::mem::take(&mut *self.managers.lock().expect("no writer panics"));
        for manager in managers {
            soon("shutdown", manager.shutdown()).await;
        }
        // Ended servers have gone before their end is reported. Processes that end by themselves may take a moment longer.
        if self.kind == Kind::Local {
            testkit::wait_for("the end of all processes of this place", || self.processes().is_empty());
        } else {
            wait_gone("servers on the executor", &self.processes());
        }
        drop(self.server);
    }
}

/// Resolves names and URLs without a file.
fn choose(asked: &str) -> Result<Choice, EnvironmentError> {
    exec_server_client::environment::Environments::empty("environments.toml").pick(Some(asked))
}

/// Runs one test on an executor.
pub(crate) fn bounded_remote(test: impl AsyncFnOnce(&Place)) {
    run(Kind::Remote, test);
}
