//! Fuzz target: our base64 module must agree with the `base64` crate on every input.

use ::base64::{Engine as _, engine::general_purpose::STANDARD};
use exec_server_protocol::base64;

use crate::weight;

pub fn check(data: &[u8]) {
    let text = weight::within(4 * data.len() + 64, || base64::encode(data));
    assert_eq!(text, STANDARD.encode(data));
    assert_eq!(text.len(), base64::encoded_len(data.len()));
    let mut appended = b"before".to_vec();
    base64::encode_into(&mut appended, data);
    assert_eq!(appended, [b"before", text.as_bytes()].concat());
    assert_eq!(base64::decode(&text).as_deref(), Ok(data));
    if let Ok(text) = std::str::from_utf8(data) {
        // Both must accept the same texts and decode them to the same bytes.
        let decoded = weight::within(2 * data.len() + 64, || base64::decode(text));
        assert_eq!(decoded.ok(), STANDARD.decode(text).ok(), "{text:?}");
    }
}
