//! A seeded TCP proxy for tests: it delays, slices, throttles, damages, swallows and cuts connections.
//!
//! Every connection gets a [`Plan`], which depends only on the seed and the number of the connection. Its events are at
//! byte positions of the stream, not at points in time. So the same seed does the same to the same bytes, however the
//! kernel splits them. The proxy does not interpret the bytes and depends on none of our crates, so the oracle of a
//! fault run can use it.
//!
//! ```no_run
//! use exec_server_chaos::{Event, Plan, Proxy};
//!
//! // Each connection is cut in the direction of the client, somewhere in its first megabyte.
//! let server = "127.0.0.1:4000".parse().unwrap();
//! let proxy = Proxy::start(server, 7, |random| Plan::default().down(random.between(0, 1 << 20), Event::Fin)).unwrap();
//! println!("connect to {}", proxy.address());
//! ```

mod far_link;
mod pipe;
mod plan;
mod proxy;
mod random;
mod sys;

pub use far_link::{FarLink, LinkCounters, LinkShape, Namespace};
pub use plan::{Event, Plan, Shape, Way};
pub use proxy::{Injected, Proxy};
pub use random::Random;
