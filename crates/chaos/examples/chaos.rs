//! The proxy as a program: put it in front of a server and watch how your client copes.
//!
//! `cargo run -p exec-server-chaos --example chaos -- --to 127.0.0.1:4000 --seed 7 --cut-within 1000000`
//!
//! A server that checks `Host` needs `--allow-host 127.0.0.1` for the port of the proxy.
#![expect(clippy::print_stdout, reason = "a command line tool: standard output is its result")]

use std::{
    io,
    net::{SocketAddr, TcpListener},
    thread,
    time::Duration,
};

use clap::Parser;
use exec_server_chaos::{Event, Plan, Proxy, Random, Shape, Way};

/// Delays, slices, throttles, damages, swallows and cuts the connections to a server, controlled by a seed.
#[derive(Parser)]
struct Options {
    /// The address of the server.
    #[arg(long, value_name = "IP:PORT")]
    to: SocketAddr,
    /// The address to listen on.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Seed. The same seed does the same to the same bytes of each connection.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Delay every read by this time, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    delay: u64,
    /// Let every byte arrive this much later, at the full rate, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    latency: u64,
    /// Delay every read by a random additional time of at most this, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    jitter: u64,
    /// Pass bytes on in random slices of at most this size.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    slice: usize,
    /// Limit each direction to this many bytes per second.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    throttle: u64,
    /// Cut each connection (FIN or RST) at a random byte below this, in a random direction.
    #[arg(long, value_name = "BYTES")]
    cut_within: Option<u64>,
    /// Half-close one direction at a random byte below this.
    #[arg(long, value_name = "BYTES")]
    half_close_within: Option<u64>,
    /// Discard one direction or both from a random byte below this.
    #[arg(long, value_name = "BYTES")]
    blackhole_within: Option<u64>,
    /// Flip a bit, repeat bytes or leave bytes out at a random byte below this.
    #[arg(long, value_name = "BYTES")]
    damage_within: Option<u64>,
}

impl Options {
    fn draw(&self, random: &mut Random) -> Plan {
        let mut plan = Plan::shaped(Shape {
            delay: Duration::from_millis(self.delay),
            latency: Duration::from_millis(self.latency),
            jitter: Duration::from_millis(self.jitter),
            slice: self.slice,
            throttle: self.throttle,
        });
        let hole = if random.one_in(2) { Event::Blackhole } else { Event::BlackholeBoth };
        for (within, event) in [
            (self.cut_within, Event::any_cut(random)),
            (self.half_close_within, Event::HalfClose),
            (self.blackhole_within, hole),
            (self.damage_within, Event::any_damage(random, 64)),
        ] {
            let way = if random.one_in(2) { Way::Up } else { Way::Down };
            let place = random.next();
            if let Some(within) = within {
                plan = plan.at(way, place % within.max(1), event);
            }
        }
        plan
    }
}

fn main() -> io::Result<()> {
    let options = Options::parse();
    let (listener, to, seed) = (TcpListener::bind(options.listen)?, options.to, options.seed);
    let proxy = Proxy::listen(listener, to, seed, move |random| options.draw(random))?;
    println!("{} -> {to}, seed {seed}", proxy.address());
    let mut told = 0;
    loop {
        thread::sleep(Duration::from_millis(200));
        let new = proxy.count() - told;
        told += new;
        let injected = proxy.injected();
        let new = usize::try_from(new).unwrap_or(usize::MAX).min(injected.len());
        for fault in &injected[injected.len() - new..] {
            println!("connection {} {:?} byte {}: {:?}", fault.connection, fault.way, fault.byte, fault.event);
        }
    }
}
