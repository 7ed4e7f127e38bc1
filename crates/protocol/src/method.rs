//! The one table of methods and notifications. It must not know handlers; the dispatcher asks it by name.

/// One request method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    /// Its name on the wire.
    pub name: &'static str,
    /// What must have happened before it.
    pub family: Family,
    /// How it runs beside other requests of its connection.
    pub class: Class,
    /// What a principal must have been granted to call it; none where being let in is enough.
    pub scope: Option<Scope>,
    /// Whether the reference does not have it.
    pub addition: bool,
}

/// A right that a principal has or has not. The server's own record says which; a client's word counts for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Start processes, and read, list and give up one's own.
    Exec,
    /// Write to a process: its stdin, the size of its terminal.
    Stdin,
    /// Signal and terminate processes.
    Signal,
    /// Read files and directories.
    FsRead,
    /// Change files and directories.
    FsWrite,
    /// Have the server make HTTP requests; without `exec` to public addresses alone.
    Http,
    /// Read the page of metrics. No method needs it; the door asks.
    Metrics,
}

impl Scope {
    /// Every scope, in the order of their declaration.
    pub const ALL: &'static [Scope] =
        &[Self::Exec, Self::Stdin, Self::Signal, Self::FsRead, Self::FsWrite, Self::Http, Self::Metrics];

    /// Its word in token files, on the command line and in error texts.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Stdin => "stdin",
            Self::Signal => "signal",
            Self::FsRead => "fs-read",
            Self::FsWrite => "fs-write",
            Self::Http => "http",
            Self::Metrics => "metrics",
        }
    }

    /// The scope with this word.
    #[must_use]
    pub fn find(word: &str) -> Option<Scope> {
        Self::ALL.iter().copied().find(|scope| scope.as_str() == word)
    }
}

/// Groups of methods with one precondition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// `initialize` itself; needs nothing.
    Handshake,
    /// V0; needs nothing, an implicit session is made.
    Command,
    /// `process/*`.
    Exec,
    /// `session/*`.
    Session,
    /// `fs/*`.
    Filesystem,
    /// `http/*`.
    Http,
    /// `environment/info`.
    EnvironmentInfo,
    /// `environment/status`.
    EnvironmentStatus,
}

impl Family {
    /// The family's word in the gate texts; none where there is no gate.
    #[must_use]
    pub const fn gate_word(self) -> Option<&'static str> {
        match self {
            Self::Handshake | Self::Command => None,
            Self::Exec => Some("exec"),
            Self::Session => Some("session"),
            Self::Filesystem => Some("filesystem"),
            Self::Http => Some("http"),
            Self::EnvironmentInfo => Some("environment info"),
            Self::EnvironmentStatus => Some("environment status"),
        }
    }

    /// The text of the error before `initialize`, which peers compare.
    #[must_use]
    pub const fn not_initialized_text(self) -> Option<&'static str> {
        match self {
            Self::Handshake | Self::Command => None,
            Self::Exec => Some("client must call initialize before using exec methods"),
            Self::Session => Some("client must call initialize before using session methods"),
            Self::Filesystem => Some("client must call initialize before using filesystem methods"),
            Self::Http => Some("client must call initialize before using http methods"),
            Self::EnvironmentInfo => Some("client must call initialize before using environment info methods"),
            Self::EnvironmentStatus => Some("client must call initialize before using environment status methods"),
        }
    }

    /// The text of the error before `initialized`, which peers compare.
    #[must_use]
    pub const fn not_confirmed_text(self) -> Option<&'static str> {
        match self {
            Self::Handshake | Self::Command => None,
            Self::Exec => Some("client must send initialized before using exec methods"),
            Self::Session => Some("client must send initialized before using session methods"),
            Self::Filesystem => Some("client must send initialized before using filesystem methods"),
            Self::Http => Some("client must send initialized before using http methods"),
            Self::EnvironmentInfo => Some("client must send initialized before using environment info methods"),
            Self::EnvironmentStatus => Some("client must send initialized before using environment status methods"),
        }
    }
}

/// How a request runs beside others of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Before the next message is looked at.
    Inline,
    /// Its effect begins in arrival order unless the client announced `concurrent`; what it then waits for holds up no other.
    Ordered,
    /// At once; never behind others, and refused only where nobody could bear more.
    Control,
}

/// The method that a frame of input stands for.
pub const PROCESS_WRITE: Method = reference("process/write", Family::Exec, Class::Ordered, Some(Scope::Stdin));

/// Every method this server serves. A new one is not written without saying which scope it needs.
pub const METHODS: &[Method] = &[
    reference("initialize", Family::Handshake, Class::Inline, None),
    reference("process/start", Family::Exec, Class::Ordered, Some(Scope::Exec)),
    reference("process/read", Family::Exec, Class::Ordered, Some(Scope::Exec)),
    PROCESS_WRITE,
    reference("process/signal", Family::Exec, Class::Control, Some(Scope::Signal)),
    reference("process/terminate", Family::Exec, Class::Control, Some(Scope::Signal)),
    addition("process/closeStdin", Family::Exec, Class::Ordered, Some(Scope::Stdin)),
    addition("process/resize", Family::Exec, Class::Control, Some(Scope::Stdin)),
    addition("process/list", Family::Exec, Class::Ordered, Some(Scope::Exec)),
    addition("process/subscribe", Family::Exec, Class::Ordered, Some(Scope::Exec)),
    addition("process/unsubscribe", Family::Exec, Class::Ordered, Some(Scope::Exec)),
    addition("process/forget", Family::Exec, Class::Ordered, Some(Scope::Exec)),
    addition("session/end", Family::Session, Class::Control, Some(Scope::Exec)),
    reference("environment/info", Family::EnvironmentInfo, Class::Control, None),
    reference("environment/status", Family::EnvironmentStatus, Class::Control, None),
    reference("fs/readFile", Family::Filesystem, Class::Ordered, Some(Scope::FsRead)),
    reference("fs/writeFile", Family::Filesystem, Class::Ordered, Some(Scope::FsWrite)),
    reference("fs/createDirectory", Family::Filesystem, Class::Ordered, Some(Scope::FsWrite)),
    reference("fs/getMetadata", Family::Filesystem, Class::Ordered, Some(Scope::FsRead)),
    reference("fs/canonicalize", Family::Filesystem, Class::Ordered, Some(Scope::FsRead)),
    reference("fs/readDirectory", Family::Filesystem, Class::Ordered, Some(Scope::FsRead)),
    reference("fs/walk", Family::Filesystem, Class::Ordered, Some(Scope::FsRead)),
    reference("fs/remove", Family::Filesystem, Class::Ordered, Some(Scope::FsWrite)),
    reference("fs/copy", Family::Filesystem, Class::Ordered, Some(Scope::FsWrite)),
    reference("fs/open", Family::Filesystem, Class::Ordered, Some(Scope::FsRead)),
    reference("fs/readBlock", Family::Filesystem, Class::Ordered, Some(Scope::FsRead)),
    reference("fs/close", Family::Filesystem, Class::Control, None),
    addition("fs/create", Family::Filesystem, Class::Ordered, Some(Scope::FsWrite)),
    addition("fs/writeBlock", Family::Filesystem, Class::Ordered, Some(Scope::FsWrite)),
    addition("fs/commit", Family::Filesystem, Class::Ordered, Some(Scope::FsWrite)),
    addition("fs/setMetadata", Family::Filesystem, Class::Ordered, Some(Scope::FsWrite)),
    addition("fs/createSymlink", Family::Filesystem, Class::Ordered, Some(Scope::FsWrite)),
    addition("fs/search", Family::Filesystem, Class::Ordered, Some(Scope::FsRead)),
    addition("fs/searchNext", Family::Filesystem, Class::Ordered, Some(Scope::FsRead)),
    addition("fs/glob", Family::Filesystem, Class::Ordered, Some(Scope::FsRead)),
    addition("fs/watch", Family::Filesystem, Class::Ordered, Some(Scope::FsRead)),
    addition("fs/watchNext", Family::Filesystem, Class::Ordered, Some(Scope::FsRead)),
    reference("http/request", Family::Http, Class::Ordered, Some(Scope::Http)),
    addition("http/cancel", Family::Http, Class::Control, Some(Scope::Http)),
    reference("command/exec", Family::Command, Class::Ordered, Some(Scope::Exec)),
    reference("command/exec/write", Family::Command, Class::Ordered, Some(Scope::Stdin)),
    reference("command/exec/terminate", Family::Command, Class::Control, Some(Scope::Signal)),
];

/// Methods under this prefix are V0's: an unknown one is -32600 there.
pub const COMMAND_PREFIX: &str = "command/";

impl Method {
    /// The method of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Method> {
        METHODS.iter().find(|method| method.name == name)
    }
}

/// One notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// Its name on the wire.
    pub name: &'static str,
    /// Who sends it.
    pub sender: Sender,
    /// Whether the reference does not have it.
    pub addition: bool,
}

/// Who sends a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sender {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// The client accepts the result of `initialize`.
pub const INITIALIZED: &str = "initialized";
/// The client has taken output.
pub const PROCESS_ACK: &str = "process/ack";
/// Output of a process.
pub const PROCESS_OUTPUT: &str = "process/output";
/// A process ended.
pub const PROCESS_EXITED: &str = "process/exited";
/// A process ended and all of its output was told.
pub const PROCESS_CLOSED: &str = "process/closed";
/// Output that can no longer be told.
pub const PROCESS_GAP: &str = "process/gap";
/// The number of a process in the binary frames of this connection.
pub const PROCESS_CHANNEL: &str = "process/channel";
/// The client has taken pieces of a streamed HTTP body.
pub const HTTP_ACK: &str = "http/request/ack";
/// A piece of a streamed HTTP body.
pub const HTTP_BODY_DELTA: &str = "http/request/bodyDelta";
/// Output of a V0 process.
pub const COMMAND_OUTPUT_DELTA: &str = "command/exec/outputDelta";
/// A V0 process ended and all of its output was told.
pub const COMMAND_EXITED: &str = "command/exec/exited";

/// Every notification, both ways.
pub const NOTIFICATIONS: &[Notification] = &[
    Notification { name: INITIALIZED, sender: Sender::Client, addition: false },
    Notification { name: PROCESS_ACK, sender: Sender::Client, addition: true },
    Notification { name: PROCESS_OUTPUT, sender: Sender::Server, addition: false },
    Notification { name: PROCESS_EXITED, sender: Sender::Server, addition: false },
    Notification { name: PROCESS_CLOSED, sender: Sender::Server, addition: false },
    Notification { name: PROCESS_GAP, sender: Sender::Server, addition: true },
    Notification { name: PROCESS_CHANNEL, sender: Sender::Server, addition: true },
    Notification { name: HTTP_ACK, sender: Sender::Client, addition: true },
    Notification { name: HTTP_BODY_DELTA, sender: Sender::Server, addition: false },
    Notification { name: COMMAND_OUTPUT_DELTA, sender: Sender::Server, addition: false },
    Notification { name: COMMAND_EXITED, sender: Sender::Server, addition: false },
];

const fn reference(name: &'static str, family: Family, class: Class, scope: Option<Scope>) -> Method {
    Method { name, family, class, scope, addition: false }
}

const fn addition(name: &'static str, family: Family, class: Class, scope: Option<Scope>) -> Method {
    Method { name, family, class, scope, addition: true }
}

#[cfg(test)]
mod tests {
    use super::{METHODS, Method, NOTIFICATIONS};

    #[test]
    fn every_method_is_found_by_its_name_and_only_once() {
        for method in METHODS {
            assert_eq!(Method::find(method.name), Some(method));
            assert_eq!(METHODS.iter().filter(|other| other.name == method.name).count(), 1);
        }
        assert_eq!(Method::find("process/ack"), None);
    }

    #[test]
    fn gate_texts_name_the_family() {
        for method in METHODS {
            let family = method.family;
            let expected =
                |verb: &str| family.gate_word().map(|word| format!("client must {verb} before using {word} methods"));
            assert_eq!(family.not_initialized_text().map(str::to_owned), expected("call initialize"));
            assert_eq!(family.not_confirmed_text().map(str::to_owned), expected("send initialized"));
        }
    }

    #[test]
    fn no_notification_is_also_a_method() {
        assert!(NOTIFICATIONS.iter().all(|notification| Method::find(notification.name).is_none()));
    }
}
