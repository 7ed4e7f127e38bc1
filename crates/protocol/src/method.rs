//! The table of all methods and notifications. The server's dispatcher looks methods up in it by name.

/// A request method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    /// Name on the wire.
    pub name: &'static str,
    /// The family of the method, which decides what must happen before the method can be called.
    pub family: Family,
    /// How the request is ordered relative to other requests of its connection.
    pub class: Class,
    /// The scope that the principal needs. `None`: every authenticated principal may call the method.
    pub scope: Option<Scope>,
    /// Whether the method is an addition that the reference does not have.
    pub addition: bool,
}

/// A permission of a principal. The server's own configuration grants scopes; nothing that a client declares adds to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Start processes, and read, list and forget the processes of the principal's own sessions.
    Exec,
    /// Write to the stdin of a process, and resize its terminal.
    Stdin,
    /// Signal and terminate processes.
    Signal,
    /// Read files and directories.
    FsRead,
    /// Change files and directories.
    FsWrite,
    /// Let the server make HTTP requests. Without `exec`, only to public addresses.
    Http,
    /// Read the metrics page. No method needs this scope; the HTTP listener checks it.
    Metrics,
}

impl Scope {
    /// All scopes, in the order of their declaration.
    pub const ALL: &'static [Scope] =
        &[Self::Exec, Self::Stdin, Self::Signal, Self::FsRead, Self::FsWrite, Self::Http, Self::Metrics];

    /// Name of the scope in token files, on the command line and in error texts.
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

    /// Looks up a scope by its name.
    #[must_use]
    pub fn find(word: &str) -> Option<Scope> {
        Self::ALL.iter().copied().find(|scope| scope.as_str() == word)
    }
}

/// Groups of methods with the same precondition and the same error texts. Except for `Handshake` and `Command`, the client must have called
/// `initialize` and sent `initialized`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// `initialize` itself. It has no precondition.
    Handshake,
    /// `command/*` of V0. It has no precondition: the server creates an implicit session.
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
    /// The word for the family in the error texts below. `None` if the family has no precondition.
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

    /// Text of the error before `initialize`. Older peers compare it, so it must not change.
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

    /// Text of the error before `initialized`. Older peers compare it, so it must not change.
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

/// How a request is ordered relative to other requests of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Handled before the server reads the next message.
    Inline,
    /// Takes effect in order of arrival, unless the client announced `concurrent`. Once its effect has begun, it does not delay other
    /// requests while it waits.
    Ordered,
    /// Handled at once, never behind other requests. Refused only at twice the limit of unanswered requests.
    Control,
}

/// The method that an input frame of the dialect `binary` stands for.
pub const PROCESS_WRITE: Method = reference("process/write", Family::Exec, Class::Ordered, Some(Scope::Stdin));

/// All methods that this server implements. Every entry must name its scope.
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

/// Prefix of the methods of V0. An unknown method with this prefix gets the code -32600.
pub const COMMAND_PREFIX: &str = "command/";

impl Method {
    /// Looks up a method by its name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Method> {
        METHODS.iter().find(|method| method.name == name)
    }
}

/// A notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// Name on the wire.
    pub name: &'static str,
    /// Which side sends it.
    pub sender: Sender,
    /// Whether the notification is an addition that the reference does not have.
    pub addition: bool,
}

/// The side that sends a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sender {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// From the client: it accepts the result of `initialize`.
pub const INITIALIZED: &str = "initialized";
/// From the client: it has consumed output.
pub const PROCESS_ACK: &str = "process/ack";
/// From the server: output of a process.
pub const PROCESS_OUTPUT: &str = "process/output";
/// From the server: a process has exited.
pub const PROCESS_EXITED: &str = "process/exited";
/// From the server: a process has exited and all of its output has been sent.
pub const PROCESS_CLOSED: &str = "process/closed";
/// From the server: events of a process that can no longer be read.
pub const PROCESS_GAP: &str = "process/gap";
/// From the server: the channel number of a process in the binary frames of this connection.
pub const PROCESS_CHANNEL: &str = "process/channel";
/// From the client: it has consumed pieces of a streamed HTTP body.
pub const HTTP_ACK: &str = "http/request/ack";
/// From the server: a piece of a streamed HTTP body.
pub const HTTP_BODY_DELTA: &str = "http/request/bodyDelta";
/// From the server: output of a V0 process.
pub const COMMAND_OUTPUT_DELTA: &str = "command/exec/outputDelta";
/// From the server: a V0 process has exited and all of its output has been sent.
pub const COMMAND_EXITED: &str = "command/exec/exited";

/// All notifications, in both directions.
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
