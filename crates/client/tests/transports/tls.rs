//! The `wss://` transport against a server with certificates created by the test.
#![cfg(feature = "tls")]

use std::{fs, sync::Arc};

use exec_server_client::{
    Error, ErrorKind,
    transport::{Connect as _, Connection, Dialer, Tls},
};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs::default_provider,
    server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use testkit::{Authority, Identity};

use crate::{upgrade, within};

/// The server side: its certificate, and the authority of the clients that it accepts.
fn acceptor(Identity { cert, key }: &Identity, clients: Option<&Authority>) -> TlsAcceptor {
    let provider = Arc::new(default_provider());
    let verifier: Arc<dyn ClientCertVerifier> = match clients {
        None => Arc::new(NoClientAuth),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(authority.ca()).unwrap()).unwrap();
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap()
        }
    };
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![CertificateDer::from_pem_file(cert).unwrap()],
            PrivateKeyDer::from_pem_file(key).unwrap(),
        )
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Dials a server by `host`, and exchanges one message in each direction. Returns the head of the request.
async fn check(host: &str, acceptor: TlsAcceptor, tls: Tls) -> Result<String, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut dialer = Dialer::new(format!("wss://{host}:{port}/?token=s3cret").parse().unwrap());
    dialer.tls = tls;
    let serving = async {
        let (socket, _) = listener.accept().await.unwrap();
        match acceptor.accept(socket).await {
            Ok(secured) => Some(upgrade::serve(secured).await.0),
            Err(_) => None,
        }
    };
    let dialing = async {
        let connection: Connection = dialer.connect().await?;
        assert!(connection.stream.probe.is_some(), "the kernel is asked about the peer below TLS");
        upgrade::greet(connection).await;
        Ok(())
    };
    let (head, dialed) = within(async { tokio::join!(serving, dialing) }).await;
    if let Err(error) = &dialed {
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    }
    dialed.map(|()| head.expect("the server took the client"))
}

fn check_refused(result: Result<String, Error>, word: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect);
    assert!(error.to_string().contains(word), "`{word}` in: {error}");
}

#[tokio::test]
async fn the_own_authority_is_trusted_and_no_other() {
    let ours = Authority::temporary("ours");
    let server = ours.issue("localhost");
    let head = check("localhost", acceptor(&server, None), Tls::default().ca_file(ours.ca())).await.unwrap();
    assert!(head.contains("\r\nAuthorization: Bearer s3cret\r\n") && head.starts_with("GET / "), "{head}");
    for name in ["other", "ours"] {
        let other = Authority::temporary(name);
        let refused = check("localhost", acceptor(&server, None), Tls::default().ca_file(other.ca())).await;
        check_refused(refused, "pass its CA with `--tls-ca`");
    }
}

#[tokio::test]
async fn an_address_may_be_what_the_certificate_is_for() {
    let authority = Authority::temporary("authority");
    let server = authority.issue("127.0.0.1");
    check("127.0.0.1", acceptor(&server, None), Tls::default().ca_file(authority.ca())).await.unwrap();
}

#[tokio::test]
async fn a_certificate_of_another_name_is_refused() {
    let authority = Authority::temporary("authority");
    let server = authority.issue("elsewhere.example");
    let refused = check("localhost", acceptor(&server, None), Tls::default().ca_file(authority.ca())).await;
    check_refused(refused, "another name");
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_it_is_asked_for() {
    let (servers, clients) = (Authority::temporary("servers"), Authority::temporary("clients"));
    let server = servers.issue("localhost");
    let Identity { cert, key } = clients.issue("me");
    let tls = Tls::default().ca_file(servers.ca());
    let mine = tls.clone().client_cert(cert, key);
    check("localhost", acceptor(&server, Some(&clients)), mine).await.unwrap();
    let nobody = check("localhost", acceptor(&server, Some(&clients)), tls.clone()).await;
    check_refused(nobody, "client certificate");
    for name in ["others", "clients"] {
        let others = Authority::temporary(name);
        let Identity { cert, key } = others.issue("stranger");
        let stranger = check("localhost", acceptor(&server, Some(&clients)), tls.clone().client_cert(cert, key)).await;
        check_refused(stranger, "client certificate");
    }
}

#[tokio::test]
async fn files_that_are_no_certificates_are_named() {
    let authority = Authority::temporary("authority");
    let server = authority.issue("localhost");
    let Identity { cert, key } = authority.issue("me");
    let empty = authority.dir().join("empty.pem");
    fs::write(&empty, "nothing").unwrap();
    let tls = Tls::default().ca_file(authority.ca());
    for (tls, word) in [
        (Tls::default().ca_file(&empty), "no certificate in"),
        (Tls::default().ca_file(authority.dir().join("none.pem")), "none.pem"),
        (tls.clone().client_cert(&empty, &key), "no certificate in"),
        (tls.clone().client_cert(&cert, &empty), "empty.pem"),
        (tls.client_cert(&cert, &server.key), "set TLS up"),
    ] {
        check_refused(check("localhost", acceptor(&server, None), tls).await, word);
    }
}

#[tokio::test]
async fn a_plain_server_is_recognized() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = Authority::temporary("authority");
    let mut dialer = Dialer::new(format!("wss://{}", listener.local_addr().unwrap()).parse().unwrap());
    dialer.tls = Tls::default().ca_file(authority.ca());
    let serving = async {
        use tokio::io::AsyncWriteExt as _;
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        socket
    };
    let (connected, _socket) = within(async { tokio::join!(dialer.connect(), serving) }).await;
    check_refused(connected.map(|_| String::new()), "use `ws://`");
}
