//! `fs/*`: what each method does with the files of this host. The work itself is [`exec_server_fs`]'s; here params become its arguments and
//! its answers results.
//!
//! Every operation goes through [`Errand::run`]: in its turn, on a thread of the pool, beneath the roots of its principal. What takes long, and
//! is bounded by its own rules, goes through [`Errand::launch`]: on a thread of its own, with the same [`Sight`]. Must not know how a path is resolved.

pub(crate) mod block;
pub(crate) mod seek;
pub(crate) mod tree;
pub(crate) mod whole;

use std::path::{Component, Path, PathBuf};

use exec_server_fs::{self as files, Cancel, Links, View};
use exec_server_protocol::{
    base64, fs as wire,
    path::{PathArg, PathError},
};
use serde_json::value::RawValue;
use tokio::sync::OwnedMutexGuard;

use super::Context;
use crate::{audit::Record, error::Failure, pump::Reply, session::Session};

/// A request on its way: who asked, and its turn among the others of its session.
struct Errand {
    context: Context,
    method: &'static str,
    /// Held until it is answered, for a client whose requests have their effect one after the other.
    turn: Option<OwnedMutexGuard<()>>,
}

/// What of this host's files a request sees: the one place that says so, for whichever thread looks.
struct Sight {
    roots: Vec<PathBuf>,
}

impl Sight {
    /// Shows the files to some work, on the thread that calls this.
    fn show<T>(&self, work: impl FnOnce(&View) -> T) -> T {
        let view = if self.roots.is_empty() { View::everything() } else { View::beneath(&self.roots) };
        work(&view)
    }
}

impl Errand {
    /// Waits for its turn. Asked for before anything else, so that turns come in the order of arrival.
    async fn begin(context: Context, method: &'static str) -> Self {
        let turn = context.session.files.turn.clone();
        let turn = if context.peer.manners().concurrent { None } else { Some(turn.lock_owned().await) };
        Self { context, method, turn }
    }

    /// One that changes nothing and asks for what is there already: it waits for nobody.
    fn out_of_turn(context: Context, method: &'static str) -> Self {
        Self { context, method, turn: None }
    }

    /// Lets the next one begin before this one is answered.
    fn give_turn_away(&mut self) {
        self.turn = None;
    }

    fn session(&self) -> &Session {
        &self.context.session
    }

    /// Runs an operation beneath the roots of the principal, on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        sandbox: Option<&RawValue>,
        operation: impl FnOnce(&View, &Cancel) -> files::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let sight = self.sight(sandbox)?;
        let job = move |cancel: &Cancel| sight.show(|view| operation(view, cancel));
        let done = self.context.core.files.run(&self.session().files, job).await?;
        done.map_err(|error| self.failed(error))
    }

    /// Begins work that takes long, on a thread of its own. Who calls this has a place for it, and a word that ends it.
    fn launch(
        &self,
        sandbox: Option<&RawValue>,
        work: impl FnOnce(Result<&View, Failure>) + Send + 'static,
    ) -> Result<(), Failure> {
        let sight = self.sight(sandbox)?;
        let thread = std::thread::Builder::new().name("exec-seek".to_owned());
        let launched = thread.spawn(move || sight.show(|view| work(Ok(view))));
        launched.map(drop).map_err(|source| Failure::Host { what: "start a thread", source })
    }

    fn sight(&self, sandbox: Option<&RawValue>) -> Result<Sight, Failure> {
        if sandbox.is_some_and(confines) {
            return Err(Failure::NotEnforceable { what: "sandbox".to_owned() });
        }
        Ok(Sight { roots: self.context.grant.rights().roots.clone() })
    }

    /// Runs work on a file that is open already.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cancel) -> files::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let done = self.context.core.files.run(&self.session().files, work).await?;
        done.map_err(|error| self.failed(error))
    }

    /// Puts on record who tried to leave his roots; other failures are between the client and its files.
    fn failed(&self, error: files::Error) -> Failure {
        let failure = Failure::from(error);
        if failure.kind() == exec_server_protocol::failure::Kind::Forbidden {
            let (method, reason) = (Some(self.method), Some(failure.to_string()));
            self.context.record(self.session(), None, Record { method, reason, ..Record::of("request.deny") });
        }
        failure
    }
}

/// Answers with what came of it.
fn answer<T: serde::Serialize>(reply: Reply, done: Result<T, Failure>) {
    match done {
        Ok(result) => reply.result(&result),
        Err(failure) => reply.fail(&failure),
    }
}

/// Does this sandbox ask to confine file operations? What cannot be read counts as a yes.
fn confines(sandbox: &RawValue) -> bool {
    let Ok(context) = serde_json::from_str::<serde_json::Value>(sandbox.get()) else { return true };
    if context.is_null() {
        return false;
    }
    let permissions = &context["permissions"];
    match permissions["type"].as_str() {
        Some("disabled" | "external") => false,
        Some("managed") => permissions["file_system"]["type"] != "unrestricted",
        _ => true,
    }
}

/// The absolute path of a request, dot segments removed by their text alone, as every generation does.
fn path(arg: &PathArg) -> Result<PathBuf, Failure> {
    let path = arg.resolve().map_err(|source| match source {
        // A path, but of another kind of host.
        PathError::Foreign => Failure::ForeignPath { path: arg.as_str().to_owned() },
        source => Failure::Path { path: arg.as_str().to_owned(), source },
    })?;
    Ok(normalized(&path))
}

fn normalized(path: &Path) -> PathBuf {
    let mut normal = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => drop(normal.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    normal
}

fn links(follow: Option<bool>) -> Links {
    if follow.unwrap_or(true) { Links::Follow } else { Links::Refuse }
}

fn to_wire(moment: files::Moment) -> wire::Moment {
    wire::Moment { seconds: moment.seconds, nanos: moment.nanos }
}

fn from_wire(moment: wire::Moment) -> files::Moment {
    files::Moment { seconds: moment.seconds, nanos: moment.nanos }
}

/// Text, and the base64 of the bytes where it could not say them all.
fn text_and_bytes(bytes: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), Some(base64::encode(bytes))),
    }
}

/// The bytes of a chunk; for `fs/writeFile` and its like the reference calls bad base64 a bad request.
fn decode(chunk: &str) -> Result<Vec<u8>, Failure> {
    base64::decode(chunk).map_err(|_| Failure::FileBase64)
}

fn write_result(written: files::Written) -> wire::WriteFileResult {
    wire::WriteFileResult { atomic: written.atomic, etag: Some(written.etag), size: Some(written.size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_segments_go_by_their_text() {
        for (given, expected) in
            [("/", "/"), ("/a/./b/../c", "/a/c"), ("/../..", "/"), ("/a/b/..", "/a"), ("/a//b/", "/a/b")]
        {
            assert_eq!(normalized(Path::new(given)), Path::new(expected), "{given}");
        }
    }

    #[test]
    fn only_a_sandbox_that_confines_nothing_passes() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        for open in [
            "null",
            r#"{"permissions":{"type":"disabled"}}"#,
            r#"{"permissions":{"type":"external","network":"restricted"}}"#,
            r#"{"permissions":{"type":"managed","file_system":{"type":"unrestricted"},"network":"restricted"}}"#,
        ] {
            assert!(!confines(&raw(open)), "{open}");
        }
        for shut in [
            "{}",
            "7",
            r#"{"permissions":{"type":"new"}}"#,
            r#"{"permissions":{"type":"managed","file_system":{"type":"restricted","entries":[]},"network":"enabled"}}"#,
        ] {
            assert!(confines(&raw(shut)), "{shut}");
        }
    }
}
