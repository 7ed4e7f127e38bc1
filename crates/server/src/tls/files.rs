//! The files of TLS: read, checked, and told apart when they change.
//! Must not know connections.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject as _},
};
use zeroize::Zeroizing;

use super::TlsError;
use crate::state_dir::private;

/// Largest file read: a chain of certificates has a few KiB, a bundle of authorities some hundred.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// What tells one version of a file from the next; absent while there is no file.
pub(super) type Stamp = Option<(u64, u64, i64, i64, u64)>;

/// Looks at a file without reading it.
pub(super) fn stamp(path: &Path) -> Stamp {
    let metadata = fs::metadata(path).ok()?;
    // The change time has nanoseconds, and moves also where a tool sets the modification time back.
    Some((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec(), metadata.size()))
}

/// The certificates of a PEM file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path, File::open(path).map_err(|source| failed(path, source))?)?;
    let parsed: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&bytes).collect();
    match parsed {
        Ok(certificates) if certificates.is_empty() => Err(TlsError::NoCertificate { path: path.to_owned() }),
        Ok(certificates) => Ok(certificates),
        Err(source) => Err(TlsError::Pem { path: path.to_owned(), source }),
    }
}

/// The private key of a PEM file that only we, or root for us, can have read and written.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let file = File::open(path).map_err(|source| failed(path, source))?;
    private::check(&file, &file.metadata().map_err(|source| failed(path, source))?, path)?;
    let bytes = read(path, file)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|source| TlsError::Pem { path: path.to_owned(), source })
}

fn read(path: &Path, file: File) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    let size = file.metadata().map_err(|source| failed(path, source))?.len().min(FILE_MAX_BYTES);
    // One allocation where the size is known, so that no copy of a key is left behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(size).unwrap_or_default() + 1));
    file.take(FILE_MAX_BYTES).read_to_end(&mut bytes).map_err(|source| failed(path, source))?;
    Ok(bytes)
}

fn failed(path: &Path, source: io::Error) -> TlsError {
    TlsError::Read { path: PathBuf::from(path), source }
}
