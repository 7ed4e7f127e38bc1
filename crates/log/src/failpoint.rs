//! Named steps of the log and of its spilling, at which a test ends the process. Knows no step by name.
//!
//! Without the feature `failpoints` a step is an empty function, which the compiler leaves out.

/// A step is about to be taken.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn step(_name: &'static str) {}

#[cfg(feature = "failpoints")]
static HOOK: std::sync::OnceLock<fn(&'static str)> = std::sync::OnceLock::new();

/// A step is about to be taken.
#[cfg(feature = "failpoints")]
pub fn step(name: &'static str) {
    if let Some(hook) = HOOK.get() {
        hook(name);
    }
}

/// Sets what is called at every step, once for the whole process.
#[cfg(feature = "failpoints")]
pub fn install(hook: fn(&'static str)) {
    HOOK.set(hook).expect("one hook a process");
}
