//! A seeded TCP proxy for tests: it delays, slices, throttles, damages, swallows and cuts what passes.
//!
//! Every connection gets a [`Plan`], drawn from the seed and the connection's number alone, whose events stand at bytes of the
//! stream and not at moments: the same seed does the same to the same bytes, however the kernel cuts them. It knows nothing of
//! what the bytes mean and depends on nothing of ours, so that the oracle of a fault run may use it.
//!
//! ```no_run
//! use exec_server_chaos::{Event, Plan, Proxy};
//!
//! // Each connection is cut in the direction of the client, somewhere in its first megabyte.
//! let server = "127.0.0.1:4000".parse().unwrap();
//! let proxy = Proxy::start(server, 7, |random| Plan::default().down(random.between(0, 1 << 20), Event::Fin)).unwrap();
//! println!("connect to {}", proxy.address());
//! ```

mod pipe;
mod plan;
mod proxy;
mod random;

pub use plan::{Event, Plan, Shape, Way};
pub use proxy::{Injected, Proxy};
pub use random::Random;
