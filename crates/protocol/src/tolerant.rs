//! Helpers for lenient decoding that several types share.

use serde::{Deserialize, Deserializer, Serialize};

/// Params or a result without members. Missing params, null and any object are accepted. Encoded as `{}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Empty {}

/// Decodes null as the default value. Use it together with `#[serde(default)]`, which handles a missing key.
pub(crate) fn null_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// For `skip_serializing_if`: omits a flag that is false.
pub(crate) fn is_false(flag: &bool) -> bool {
    !*flag
}

/// For `skip_serializing_if`: omits a number that is zero.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}
