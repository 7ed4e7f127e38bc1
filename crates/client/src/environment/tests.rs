//! Table tests for names, URLs and `environments.toml`.

use std::{ffi::OsString, fs, path::Path, time::Duration};

use super::{Choice, Environment, EnvironmentState, Environments, config_file, value_of_variables};
use crate::{ErrorKind, transport::Token};

const FILE: &str = "/conf/environments.toml";

fn parse(text: &str) -> Result<Environments, String> {
    Environments::parse(text, Path::new(FILE)).map_err(|error| error.to_string())
}

/// A short description of a choice.
fn shown(choice: &Choice) -> String {
    match choice {
        Choice::None => "none".to_owned(),
        Choice::Local => "local".to_owned(),
        Choice::Remote(spec) => format!("{} at {}", spec.id, spec.target),
    }
}

fn pick(file: &Environments, requested: Option<&str>) -> String {
    file.pick(requested).map_or_else(|error| format!("error: {error}"), |choice| shown(&choice))
}

#[test]
fn default_provider_follows_the_url_rules() {
    let empty = Environments::empty(FILE);
    for (requested, expected) in [
        (None, "local"),
        (Some(""), "local"),
        (Some(" \t"), "local"),
        (Some("local"), "local"),
        (Some("none"), "none"),
        (Some(" NoNe "), "none"),
        (Some("ws://127.0.0.1:4000"), "remote at ws://127.0.0.1:4000/"),
        (Some(" wss://build.example/?token=secret "), "remote at wss://build.example/"),
        (Some("unix:///run/exec.sock"), "remote at unix:///run/exec.sock"),
        (Some("ssh://me@build"), "remote at ssh://me@build"),
        (Some("stdio:exec-server serve --listen stdio"), "remote at stdio:exec-server"),
    ] {
        assert_eq!(pick(&empty, requested), expected, "{requested:?}");
    }
    let error = pick(&empty, Some("build"));
    assert!(error.contains("no environment is named `build`: use one of `local`"), "{error}");
    assert!(error.contains(FILE), "{error}");
    let error = pick(&empty, Some("http://build/?token=secret"));
    assert!(error.contains("this URL cannot be used") && !error.contains("secret"), "{error}");
}

#[test]
fn a_fingerprint_differs_by_address_and_token() {
    let other = Token::new("other").unwrap();
    let print = |requested: &str, token| match Choice::without_file(requested).unwrap().unwrap() {
        Choice::Remote(spec) => spec.fingerprint(token),
        Choice::None | Choice::Local => panic!("{requested} is a URL"),
    };
    let all = [
        print("ws://a:1/", None),
        print("ws://a:1/?token=s3cret", None),
        print("ws://a:1/", Some(&other)),
        print("ws://a:1/?room=1", None),
        print("ws://b:1/", None),
        print("stdio:docker exec a", None),
        print("stdio:docker exec b", None),
        print("stdio:docker 'exec a'", None),
        print("stdio:docker exec", None),
    ];
    for (at, one) in all.iter().enumerate() {
        assert!(!all[at + 1..].contains(one), "{at}");
        assert!(one.len() == 64 && !one.contains("s3cret"), "{one}");
    }
    // The value of the token counts, not its source. A token in the URL takes precedence.
    assert_eq!(print("ws://a:1/?token=other", None), print("ws://a:1/", Some(&other)));
    assert_eq!(print("ws://a:1/?token=s3cret", Some(&other)), print("ws://a:1/?token=s3cret", None));
}

#[test]
fn environment_manager_finds_names_and_the_default_of_the_file() {
    let text = "default = 'box'\n[[environments]]\nid = 'build'\nurl = 'ws://build:1'\n\
                [[environments]]\nid = 'box'\nprogram = 'docker'\nargs = ['exec']\n";
    let file = parse(text).unwrap();
    assert_eq!(file.names(), ["local", "build", "box"]);
    for (requested, expected) in [
        (None, "box at stdio:docker"),
        (Some("build"), "build at ws://build:1/"),
        (Some("local"), "local"),
        (Some("none"), "none"),
        (Some("ws://other:2"), "remote at ws://other:2/"),
    ] {
        assert_eq!(pick(&file, requested), expected, "{requested:?}");
    }
    // Names are case-sensitive.
    assert!(pick(&file, Some("Build")).starts_with("error: "));
}

#[test]
fn disabled_environment_manager_has_no_environment() {
    let off = parse("default = 'None'").unwrap();
    assert_eq!(pick(&off, None), "none");
    assert_eq!(pick(&off, Some("local")), "local");
    let elsewhere = parse("include_local = false\n[[environments]]\nid = 'a'\nurl = 'ws://a:1'").unwrap();
    assert_eq!(pick(&elsewhere, None), "none");
    assert!(pick(&elsewhere, Some("local")).contains("use one of `a`"));
    assert_eq!(elsewhere.names(), ["a"]);
}

#[test]
fn every_key_of_an_environment_is_read() {
    let text = "
[[environments]]
id = 'safe'
url = 'wss://safe.example:4000'
connect_timeout_sec = 3
initialize_timeout_sec = 0.5
token_file = 'safe.token'
ca_file = '/etc/ca.pem'
client_cert = 'me.pem'
client_key = 'keys/me.pem'

[[environments]]
id = 'box'
program = './start'
args = ['-i', 'box']
env = { A = '1', B = '' }
cwd = 'boxes'
";
    let file = parse(text).unwrap();
    let safe = file.get("safe").unwrap();
    assert_eq!(safe.target.to_string(), "wss://safe.example:4000/");
    let timeouts = (safe.connect_timeout, safe.initialize_timeout);
    assert_eq!(timeouts, (Some(Duration::from_secs(3)), Some(Duration::from_millis(500))));
    assert_eq!(safe.token_file.as_deref(), Some(Path::new("/conf/safe.token")));
    assert_eq!(safe.ca_file.as_deref(), Some(Path::new("/etc/ca.pem")));
    let identity = safe.identity.as_ref().unwrap();
    assert_eq!((&*identity.cert, &*identity.key), (Path::new("/conf/me.pem"), Path::new("/conf/keys/me.pem")));
    assert!(!safe.is_program);
    let program = file.get("box").unwrap();
    assert!(program.is_program);
    // `Debug` shows no values, which may be secrets.
    let shown = format!("{:?}", program.target);
    assert!(shown.contains("stdio:/conf/./start"), "{shown}");
}

#[test]
fn every_error_names_its_key_and_the_fix() {
    let entry = |rest: &str| format!("[[environments]]\nid = 'a'\n{rest}");
    let long = format!("[[environments]]\nid = '{}'\nurl = 'ws://a:1'", "ü".repeat(65));
    for (text, expected) in [
        ("default = ".to_owned(), "is not TOML, line 1: "),
        ("\n[[environments]]\nid = 'a'\nid = 'b'".to_owned(), "is not TOML, line 4: duplicate key"),
        (
            "defalt = 'a'".to_owned(),
            "key `defalt`: unknown field `defalt`, expected one of `default`, `include_local`, `environments`, line 1",
        ),
        ("include_local = 'yes'".to_owned(), "key `include_local`: must be true or false, line 1"),
        ("environments = 1".to_owned(), "key `environments`: invalid type: integer `1`, expected a sequence, line 1"),
        ("default = 'b'".to_owned(), "key `default`: `b` is not an environment; use one of `local`, or `none`"),
        ("default = 'local'\ninclude_local = false".to_owned(), "key `default`: `local` is not an environment"),
        ("[[environments]]\nurl = 'ws://a:1'".to_owned(), "environment `#1`: key `id`: missing"),
        (
            "[[environments]]\nid = 7\nurl = 'ws://a:1'".to_owned(),
            "environment `#1`: key `id`: must be text in quotes, line 2",
        ),
        ("[[environments]]\nid = ''\nurl = 'ws://a:1'".to_owned(), "environment `#1`: key `id`: must have 1 to 64"),
        ("[[environments]]\nid = ' a'\nurl = 'ws://a:1'".to_owned(), "no blank at either end"),
        ("[[environments]]\nid = 'a:b'\nurl = 'ws://a:1'".to_owned(), "no colon"),
        (long, "must have 1 to 64 characters"),
        ("[[environments]]\nid = 'Local'\nurl = 'ws://a:1'".to_owned(), "key `id`: `Local` is reserved"),
        ("[[environments]]\nid = 'none'\nurl = 'ws://a:1'".to_owned(), "key `id`: `none` is reserved"),
        (entry("url = 'ws://a:1'\n") + &entry("url = 'ws://b:1'"), "environment `a`: key `id`: `a` is used twice"),
        (entry(""), "environment `a`: key `url`: missing; give either `url` or `program`"),
        (entry("url = 'ws://a:1'\nprogram = 'x'"), "environment `a`: key `program`: cannot be combined with `url`"),
        (entry("url = 'ws://a:1'\nargs = ['x']"), "environment `a`: key `args`: needs `program` beside it"),
        (entry("env = {}"), "environment `a`: key `url`: missing; give either `url` or `program`"),
        (entry("url = 'ws://a:1'\ncwd = '/'"), "environment `a`: key `cwd`: needs `program` beside it"),
        (entry("program = 'x'\nargs = 'y'"), "key `args`: must be a list of texts"),
        (entry("program = 'x'\nargs = [1]"), "key `args`: must be a list of texts"),
        (entry("program = 'x'\nenv = { A = 1 }"), "key `env`: must be a table of texts"),
        (entry("program = 'x'\nenv = { 'A=B' = '1' }"), "key `env`: must be a table of texts"),
        (entry("program = ''"), "key `program`: must be the name or the path of a program"),
        (entry("program = 'x'\ncwd = ''"), "key `cwd`: must be a path"),
        (entry("url = 'http://a'"), "environment `a`: key `url`: "),
        (
            entry("url = 'ws://a:1'\ncolour = 'red'"),
            "environment `a`: key `colour`: unknown field `colour`, expected one of `id`, `url`",
        ),
        (entry("url = 'ws://a:1'\nconnect_timeout_sec = 0"), "key `connect_timeout_sec`: must be a number of seconds"),
        (entry("url = 'ws://a:1'\nconnect_timeout_sec = -1"), "key `connect_timeout_sec`: must be a number"),
        (entry("url = 'ws://a:1'\ninitialize_timeout_sec = nan"), "key `initialize_timeout_sec`: must be a number"),
        (entry("url = 'ws://a:1'\ninitialize_timeout_sec = '5'"), "key `initialize_timeout_sec`: must be a number"),
        (entry("program = 'x'\ntoken_file = 't'"), "key `token_file`: only for ws, wss and unix URLs"),
        (entry("url = 'ws://a:1'\nca_file = 'c'"), "key `ca_file`: only for wss URLs"),
        (entry("url = 'wss://a:1'\nclient_cert = 'c'"), "key `client_cert`: needs `client_key` beside it"),
        (entry("url = 'wss://a:1'\nclient_key = 'c'"), "key `client_key`: needs `client_cert` beside it"),
    ] {
        let error = parse(&text).expect_err(&text);
        assert!(error.contains(expected) && error.contains(FILE), "{text}\n  gave: {error}\n  not: {expected}");
    }
}

#[test]
fn a_missing_file_counts_as_empty_and_an_unreadable_one_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("environments.toml");
    assert_eq!(Environments::load(&path).unwrap().names(), ["local"]);
    fs::write(&path, "[[environments]]\nid = 'a'\nurl = 'ws://a:1'\ntoken_file = 't'").unwrap();
    let file = Environments::load(&path).unwrap();
    assert_eq!(file.get("a").unwrap().token_file, Some(dir.path().join("t")));
    assert!(Environments::load(dir.path()).unwrap_err().to_string().starts_with("read `"));
}

#[test]
fn the_first_variable_that_is_not_empty_wins() {
    let value_with = |ours: Option<&str>, theirs: Option<&str>| {
        let lookup = |name: &str| match name {
            "EXEC_SERVER_URL" => ours.map(OsString::from),
            "CODEX_EXEC_SERVER_URL" => theirs.map(OsString::from),
            other => panic!("{other} is not one of our variables"),
        };
        value_of_variables(lookup).unwrap()
    };
    for (ours, theirs, expected) in [
        (None, None, None),
        (Some(""), Some(" "), None),
        (Some(" ws://a:1 "), Some("ws://b:1"), Some("ws://a:1")),
        (Some(" "), Some("ws://b:1"), Some("ws://b:1")),
        (None, Some("none"), Some("none")),
        (Some("local"), Some("ws://b:1"), Some("local")),
    ] {
        assert_eq!(value_with(ours, theirs).as_deref(), expected, "{ours:?} {theirs:?}");
    }
    let bytes = std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]);
    let error = value_of_variables(|_| Some(OsString::clone(&bytes))).unwrap_err();
    assert!(error.to_string().contains("`EXEC_SERVER_URL` is not UTF-8"), "{error}");
}

#[test]
fn the_file_is_in_the_config_directory_of_the_user() {
    let at = |xdg: Option<&str>, home: Option<&str>| {
        let file = config_file(xdg.map(Into::into), home.map(Into::into));
        file.map(|file| file.display().to_string())
    };
    for (xdg, home, expected) in [
        (Some("/x"), Some("/h"), Some("/x/exec-server/environments.toml")),
        (None, Some("/h"), Some("/h/.config/exec-server/environments.toml")),
        (Some(""), Some("/h"), Some("/h/.config/exec-server/environments.toml")),
        (Some("relative"), Some("/h"), Some("/h/.config/exec-server/environments.toml")),
        (None, None, None),
        (None, Some("h"), None),
    ] {
        assert_eq!(at(xdg, home).as_deref(), expected, "{xdg:?} {home:?}");
    }
}

fn environment(text: &str) -> Environment {
    let file = parse(&format!("[[environments]]\nid = 'a'\n{text}")).unwrap();
    Environment::new(file.pick(Some("a")).unwrap(), None).expect("not none")
}

#[tokio::test]
async fn terminal_stdio_startup_failure_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let script = format!("echo x >> {}; echo no such box >&2; exit 3", starts.display());
    for way in [format!("program = 'sh'\nargs = ['-c', '{script}']"), format!("url = \"stdio:sh -c '{script}'\"")] {
        fs::write(&starts, "").unwrap();
        let environment = environment(&way);
        assert_eq!((environment.id(), environment.is_remote()), ("a", true));
        assert!(matches!(environment.status(), EnvironmentState::Pending));
        let first = environment.backend().await.map(drop).unwrap_err();
        assert_eq!(first.kind(), ErrorKind::Spawn, "{first}");
        assert!(first.to_string().contains("no such box"), "{first}");
        let second = environment.backend().await.map(drop).unwrap_err();
        assert_eq!(second.to_string(), first.to_string());
        assert_eq!(fs::read_to_string(&starts).unwrap(), "x\n");
        assert!(matches!(environment.status(), EnvironmentState::Disconnected { .. }));
    }
}

#[tokio::test]
async fn retryable_startup_failure_does_not_burn_environment() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let environment = environment(&format!("url = 'ws://{}'", listener.local_addr().unwrap()));
    for _ in 0..2 {
        // Each use connects once, and the listener closes the connection at once.
        let shut = async { listener.accept().await.map(drop) };
        let (accepted, tried) = tokio::join!(shut, environment.backend());
        accepted.unwrap();
        assert_eq!(tried.map(drop).unwrap_err().kind(), ErrorKind::Connect);
    }
}

#[tokio::test]
async fn an_unusable_token_file_is_reported_before_connecting() {
    let environment = environment("url = 'ws://127.0.0.1:1'\ntoken_file = '/no/such/token'");
    let error = environment.backend().await.map(drop).unwrap_err().to_string();
    assert!(error.contains("read token file `/no/such/token`"), "{error}");
}
