//! Refuses a server that would be open to the world.
//! Must not bind anything: this is asked before the first socket exists.

use std::net::{IpAddr, SocketAddr};

use super::ListenUrl;

/// Who may come in over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Bearers of the token.
    Token,
    /// Everybody who reaches the socket.
    None,
}

/// Why a combination of listeners and flags is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExposureError {
    /// `--auth none` where others can reach it.
    #[error("`ws://{address}` is reachable from other machines: `--auth none` is for loopback and Unix sockets only")]
    NoAuth {
        /// The address.
        address: SocketAddr,
    },
    /// A token in clear text over a network, without a word that this is meant.
    #[error(
        "`ws://{address}` is reachable from other machines and has no TLS: pass `--insecure-plaintext` if a TLS proxy stands in front of it"
    )]
    Plaintext {
        /// The address.
        address: SocketAddr,
    },
}

/// Checks every listener; the first that is too open is named.
pub fn check(listeners: &[ListenUrl], auth: Auth, insecure_plaintext: bool) -> Result<(), ExposureError> {
    for url in listeners {
        let ListenUrl::Ws(address) = *url else {
            continue;
        };
        if is_loopback(address.ip()) {
            continue;
        }
        // The order matters: `--insecure-plaintext` never replaces the token.
        if auth == Auth::None {
            return Err(ExposureError::NoAuth { address });
        }
        if !insecure_plaintext {
            return Err(ExposureError::Plaintext { address });
        }
    }
    Ok(())
}

/// Whether only this machine can reach an address; `::ffff:127.0.0.1` is 127.0.0.1.
pub(crate) fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::{Auth, ExposureError, check};

    #[test]
    fn only_a_token_and_a_word_open_a_listener_beyond_loopback() {
        let local = [
            "ws://127.0.0.1:0",
            "ws://127.9.9.9:80",
            "ws://[::1]:80",
            "ws://[::ffff:127.0.0.1]:80",
            "unix:///x",
            "stdio",
        ];
        let open = [
            "ws://0.0.0.0:0",
            "ws://[::]:80",
            "ws://10.0.0.1:80",
            "ws://192.168.1.1:80",
            "ws://[fe80::1]:80",
            "ws://[::ffff:0.0.0.0]:80",
            "ws://[::ffff:10.0.0.1]:80",
            "ws://[::2]:80",
        ];
        for (urls, is_open) in [(&local[..], false), (&open[..], true)] {
            for text in urls {
                for auth in [Auth::Token, Auth::None] {
                    for plaintext in [false, true] {
                        // Second of two, so that every listener is looked at.
                        let listeners = [Default::default(), text.parse().unwrap()];
                        let result = check(&listeners, auth, plaintext);
                        let right = match (is_open, auth, plaintext) {
                            (false, ..) | (true, Auth::Token, true) => result.is_ok(),
                            (true, Auth::None, _) => {
                                matches!(result, Err(ExposureError::NoAuth { .. }))
                            }
                            (true, Auth::Token, false) => {
                                matches!(result, Err(ExposureError::Plaintext { .. }))
                            }
                        };
                        assert!(right, "{text} {auth:?} {plaintext}: {result:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_refusal_names_the_flag() {
        let open = ["ws://0.0.0.0:1".parse().unwrap()];
        let text = check(&open, Auth::Token, false).unwrap_err().to_string();
        assert!(text.contains("--insecure-plaintext"), "{text}");
        let text = check(&open, Auth::None, true).unwrap_err().to_string();
        assert!(text.contains("--auth none"), "{text}");
    }
}
