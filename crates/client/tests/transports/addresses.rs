//! Which texts are addresses, and that no output contains a token.

use exec_server_client::transport::{Connect as _, Dialer, Ssh, Target};

const SECRET: &str = "s3cret";

#[test]
fn addresses_are_read_and_shown_without_secrets() {
    for (text, shown) in [
        ("ws://127.0.0.1:7777", "ws://127.0.0.1:7777/"),
        ("ws://127.0.0.1:7777/?token=s3cret", "ws://127.0.0.1:7777/"),
        ("ws://host?a=s3cret&token=s3cret&b=2#s3cret", "ws://host/"),
        ("WS://[::1]:7777/a/b", "ws://[::1]:7777/a/b"),
        ("wss://example.org/?token=s3cret", "wss://example.org/"),
        ("unix:///run/user/1000/x.sock?token=s3cret", "unix:///run/user/1000/x.sock"),
        ("unix:///a%3Fb%20c", "unix:///a?b c"),
        ("stdio:exec-server serve --listen stdio --note s3cret", "stdio:exec-server"),
        ("stdio:'/opt/my tools/exec-server'", "stdio:/opt/my tools/exec-server"),
        ("stdio: a", "stdio:a"),
        ("ssh://host", "ssh://host"),
        ("ssh://host/", "ssh://host"),
        ("ssh://me@host.example:2222/opt/exec-server", "ssh://me@host.example:2222/opt/exec-server"),
        ("ssh://22:22", "ssh://22:22"),
        ("ssh://me@[fe80::1]:22/~/bin/exec%20server", "ssh://me@[fe80::1]:22/~/bin/exec server"),
        ("ssh://me@corp@host", "ssh://me@corp@host"),
    ] {
        let target: Target = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(target.to_string(), shown);
        assert_eq!(target.token().is_some(), text.contains("token="), "{text}");
        let dialer = Dialer::new(target);
        assert_eq!(dialer.address(), shown);
        assert!(!format!("{dialer:?}").contains(SECRET), "{text}");
        assert!(dialer.can_reconnect());
    }
}

#[test]
fn what_is_no_address_is_refused_with_the_forms_that_are() {
    let long = format!("ws://h/?token={SECRET}{}", "x".repeat(2000));
    for text in [
        "",
        "s3cret",
        "s3cret.example:80",
        "http://h/?token=s3cret",
        "ws:/h/s3cret",
        "ws:h",
        "ws://",
        "ws:///s3cret",
        "ws://:80",
        "ws://h:0",
        "ws://h:65536",
        "ws://h:-1",
        "ws://h:+1",
        "ws://h: 1",
        "ws://user:s3cret@h",
        "ws://h h/",
        "ws://h\r\nX: s3cret/",
        "ws://h/\r\nX: s3cret",
        "ws://h/a b",
        "ws://h/ä",
        "ws://hä/",
        "ws://[::1/",
        "ws://[s3cret]/",
        "ws://::1/",
        "ws://-h/",
        "ws://h%00/",
        "ws://h/?token=",
        "ws://h/?token=%20",
        "ws://h/?token=s3cret%0d%0aX:",
        "ws://h/?token=s3cret%f",
        "ws://h/?token=s3cret&token=s3cret2",
        &long,
        "unix:/s3cret",
        "unix://s3cret",
        "unix://s3cret/x",
        "unix:///a%00s3cret",
        "unix:///a%zz",
        "stdio:",
        "stdio:  ",
        "stdio:''",
        "stdio:a 's3cret",
        "stdio:a \"s3cret",
        "stdio:a s3cret\\",
        "stdio:a\0",
        "ssh://",
        "ssh:///s3cret",
        "ssh://-oProxyCommand=s3cret",
        "ssh://-oProxyCommand=s3cret@h",
        "ssh://me@-h",
        "ssh://@h",
        "ssh://me:s3cret@h",
        "ssh://$(s3cret)@h",
        "ssh://me@h;s3cret",
        "ssh://me@`s3cret`",
        "ssh://me me@h",
        "ssh://h:0",
        "ssh://h:x",
        "ssh://h/a?token=s3cret",
        "ssh://h/a#s3cret",
        "ssh://h/bin/",
        "ssh://h/a%0as3cret",
        "ssh://h/a%ff",
        "ssh://[h]",
    ] {
        let error = text.parse::<Target>().err().unwrap_or_else(|| panic!("{text:?} is an address"));
        let texts = format!("{error} {error:?} {}", exec_server_client::Error::from(error.clone()));
        assert!(!texts.contains(SECRET), "{texts}");
        for form in ["ws://", "wss://", "unix://", "stdio:", "ssh://"] {
            assert!(error.to_string().contains(form), "{error}");
        }
    }
    assert!("ws://h".parse::<Ssh>().is_err());
}
