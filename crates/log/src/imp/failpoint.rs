//! Named steps of appending and spilling, at which a test can kill the process. The callers define the names.
//!
//! Without the feature `failpoints`, `step` is an empty function that the compiler removes.

/// Marks that the named step is about to begin.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn step(_name: &'static str) {}

#[cfg(feature = "failpoints")]
static HOOK: std::sync::OnceLock<fn(&'static str)> = std::sync::OnceLock::new();

/// Marks that the named step is about to begin.
#[cfg(feature = "failpoints")]
pub fn step(name: &'static str) {
    if let Some(hook) = HOOK.get() {
        hook(name);
    }
}

/// Sets the function that is called at every step. Can be called once per process.
#[cfg(feature = "failpoints")]
pub fn install(hook: fn(&'static str)) {
    HOOK.set(hook).expect("a failpoint hook is installed only once");
}
