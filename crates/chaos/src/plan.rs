//! The faults of one connection: the shape of its flow, and events at byte positions of either direction. Pure data.

use std::time::Duration;

use crate::Random;

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// A fault at a byte of the stream. It happens after all bytes before it were passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Both peers see an orderly end, possibly in the middle of a message.
    Fin,
    /// Both peers see an RST. Bytes in transit may be lost.
    Rst,
    /// This direction ends with a FIN, the other one continues.
    HalfClose,
    /// From here on, the proxy discards this direction. It closes nothing and does not signal it to the peers.
    Blackhole,
    /// Like [`Event::Blackhole`], for both directions.
    BlackholeBoth,
    /// Inverts one bit of this byte.
    Flip {
        /// Which bit, modulo 8.
        bit: u8,
    },
    /// Repeats the bytes before this one, or as many of them as there are.
    Duplicate { bytes: usize },
    /// Leaves out this byte and the ones after it.
    Truncate {
        /// Number of bytes in total.
        bytes: usize,
    },
}

impl Event {
    /// A random way to cut a connection.
    pub fn any_cut(random: &mut Random) -> Self {
        if random.one_in(3) { Self::Rst } else { Self::Fin }
    }

    /// A random way to damage a stream, by at most `most` bytes.
    pub fn any_damage(random: &mut Random, most: u64) -> Self {
        let bytes = usize::try_from(random.between(1, most.max(1) + 1)).unwrap_or(1);
        match random.between(0, 4) {
            0 => Self::Duplicate { bytes },
            1 => Self::Truncate { bytes },
            // Half of the damages are flips: the smallest damage is the hardest to notice.
            _ => Self::Flip { bit: random.between(0, 8) as u8 },
        }
    }
}

/// How the bytes of a direction flow. Changes no byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Every read is delayed by this time.
    pub delay: Duration,
    /// Every byte arrives this much later. Unlike `delay`, it does not limit the rate: a long cable, not a slow machine.
    pub latency: Duration,
    /// Every read is delayed by a random additional time of at most this.
    pub jitter: Duration,
    /// Maximum size of the random slices in which bytes are passed on. 0: pass on each read as a whole.
    pub slice: usize,
    /// Average rate in bytes per second. 0: unlimited.
    pub throttle: u64,
}

/// All faults of one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// From the client to the server.
    pub up_shape: Shape,
    /// From the server to the client.
    pub down_shape: Shape,
    events: Vec<(Way, u64, Event)>,
}

impl Plan {
    /// A plan with the same flow in both directions.
    pub fn shaped(shape: Shape) -> Self {
        Self { up_shape: shape, down_shape: shape, events: Vec::new() }
    }

    /// Adds an event at a byte that the client sends. The first byte is 0.
    pub fn up(self, byte: u64, event: Event) -> Self {
        self.at(Way::Up, byte, event)
    }

    /// Adds an event at a byte that the server sends. The first byte is 0.
    pub fn down(self, byte: u64, event: Event) -> Self {
        self.at(Way::Down, byte, event)
    }

    /// Adds an event at a byte of a direction. Events at the same byte happen in the order in which they were added.
    pub fn at(mut self, way: Way, byte: u64, event: Event) -> Self {
        self.events.push((way, byte, event));
        self
    }

    pub(crate) fn shape(&self, way: Way) -> Shape {
        match way {
            Way::Up => self.up_shape,
            Way::Down => self.down_shape,
        }
    }

    /// The events of a direction in reverse order: the next one is last.
    pub(crate) fn events(&self, way: Way) -> Vec<(u64, Event)> {
        let mut events: Vec<_> =
            self.events.iter().filter(|(at, ..)| *at == way).map(|(_, byte, event)| (*byte, *event)).collect();
        events.sort_by_key(|(byte, _)| *byte);
        events.reverse();
        events
    }
}
