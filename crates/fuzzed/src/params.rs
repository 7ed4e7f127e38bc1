//! Round trip of the params and results of every method: a value that decodes must survive encoding and decoding again.

use exec_server_protocol::{
    message,
    method::{METHODS, Message, Method, Notification, TypeVisitor},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

/// Checks the params of the request or notification `name`.
pub(crate) fn check_params(name: &str, text: &RawValue) {
    if let Some(method) = Method::find(name) {
        method.visit_params(RoundTrip(text));
    } else if let Some(notification) = Notification::find(name) {
        notification.visit_params(RoundTrip(text));
    }
}

/// Decodes a result as every result type, because a result does not name its method.
pub(crate) fn check_result(text: &RawValue) {
    for info in METHODS {
        info.method.visit_result(RoundTrip(text));
    }
}

/// Decodes the text as the visited type. If that works, the encoded value must decode, and encode to the same text.
struct RoundTrip<'a>(&'a RawValue);

impl TypeVisitor for RoundTrip<'_> {
    type Output = ();

    fn visit_params<M: Message>(self) {
        if let Some(written) = encoded_again::<M::Params<'_>>(self.0) {
            check_stable::<M::Params<'_>>(&written);
        }
    }

    fn visit_result<T: Serialize + DeserializeOwned>(self) {
        if let Some(written) = encoded_again::<T>(self.0) {
            check_stable::<T>(&written);
        }
    }
}

fn encoded_again<'a, T: Deserialize<'a> + Serialize>(text: &'a RawValue) -> Option<Box<RawValue>> {
    let value = message::params::<T>(Some(text)).ok()?;
    Some(serde_json::value::to_raw_value(&value).unwrap())
}

fn check_stable<'a, T: Deserialize<'a> + Serialize>(written: &'a RawValue) {
    let again: T = message::params(Some(written)).unwrap_or_else(|error| panic!("we wrote {written}: {error}"));
    assert_eq!(serde_json::to_string(&again).unwrap(), written.get());
}
