//! Small pieces of tolerance that several params share. It must not know any method.

use serde::{Deserialize, Deserializer, Serialize};

/// Params or a result without members: accepts missing, null and any object, is written as `{}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Empty {}

/// Takes null for the default, as a missing key is; use it together with `#[serde(default)]`.
pub(crate) fn null_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Tells serde to leave a false flag out.
pub(crate) fn is_false(flag: &bool) -> bool {
    !*flag
}
