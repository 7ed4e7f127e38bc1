//! Certificates created on the fly, and a TLS client that presents and trusts exactly what a test says. It uses rustls and no code of ours.

use std::{
    fs, io,
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tempfile::TempDir;

use crate::{DEADLINE, Reply, exchange};

/// A certificate authority with its file `NAME.ca`. It writes the certificates that it issues to files.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
    name: String,
    /// `dir`, if it ends with the authority.
    _own_dir: Option<TempDir>,
}

/// The files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct Identity {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// Creates an authority with its files in `dir`.
    pub fn new(dir: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are fine");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("make a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("sign");
        let authority = Self { issuer, dir: dir.to_owned(), name: name.to_owned(), _own_dir: None };
        fs::write(authority.ca(), authority.issuer.pem()).expect("write the authority");
        authority
    }

    /// Creates an authority with a directory of its own.
    pub fn temporary(name: &str) -> Self {
        let dir = tempfile::tempdir().expect("make a directory");
        let mut authority = Self::new(dir.path(), name);
        authority._own_dir = Some(dir);
        authority
    }

    /// The directory of its files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Issues a certificate for this name, in the files `NAME.pem` and `NAME.key`.
    pub fn issue(&self, name: &str) -> Identity {
        self.write_identity(name, CertificateParams::new(vec![name.to_owned()]).expect("a name"))
    }

    /// The certificate file of the authority itself.
    pub fn ca(&self) -> PathBuf {
        self.dir.join(format!("{}.ca", self.name))
    }

    /// Issues a certificate for a server on loopback, in the files `FILE.pem` and `FILE.key`.
    pub fn server(&self, file: &str) -> Identity {
        let names = ["localhost", "127.0.0.1", "box.example", "*.wild.example"].map(str::to_owned);
        self.write_identity(file, CertificateParams::new(names).expect("names are names"))
    }

    /// Issues a client certificate with these subject alternative names.
    pub fn client(&self, file: &str, names: Vec<SanType>) -> Identity {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are fine");
        params.subject_alt_names = names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.write_identity(file, params)
    }

    /// Issues a client certificate that expired long ago.
    pub fn expired_client(&self, file: &str, names: Vec<SanType>) -> Identity {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are fine");
        params.subject_alt_names = names;
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        self.write_identity(file, params)
    }

    fn write_identity(&self, file: &str, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("make a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("sign");
        let identity =
            Identity { cert: self.dir.join(format!("{file}.pem")), key: self.dir.join(format!("{file}.key")) };
        fs::write(&identity.cert, certificate.pem()).expect("write the certificate");
        fs::write(&identity.key, key.serialize_pem()).expect("write the key");
        fs::set_permissions(&identity.key, fs::Permissions::from_mode(0o600)).expect("close the key");
        identity
    }
}

/// The certificate that a client presents, and its TLS versions.
#[derive(Clone, Default)]
pub struct Shown<'a> {
    pub identity: Option<&'a Identity>,
    /// Empty for the defaults of rustls.
    pub versions: &'a [&'static SupportedProtocolVersion],
}

/// Performs the handshake with `address`, under the name `localhost`, trusting only `authority`. With TLS 1.3 a server refuses a client
/// certificate only after this returns.
pub fn secure(
    address: &str,
    authority: &Authority,
    shown: &Shown<'_>,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).expect("read the authority")).expect("an authority");
    let versions = if shown.versions.is_empty() { rustls::ALL_VERSIONS } else { shown.versions };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions that exist")
        .with_root_certificates(roots);
    let mut config = match shown.identity {
        None => builder.with_no_client_auth(),
        Some(Identity { cert, key }) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_file(cert).expect("read the certificate")],
                PrivateKeyDer::from_pem_file(key).expect("read the key"),
            )
            .expect("certificate and key fit"),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from("localhost").expect("a name");
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(DEADLINE))?;
    connection.complete_io(&mut socket)?;
    Ok(StreamOwned::new(connection, socket))
}

/// One HTTP exchange inside TLS; status 0 if the handshake fails or no answer comes.
pub fn http_tls(address: &str, authority: &Authority, shown: &Shown<'_>, request: &str) -> Reply {
    match secure(address, authority, shown) {
        Ok(stream) => exchange(stream, request),
        Err(_) => Reply { status: 0, head: String::new(), body: String::new() },
    }
}
