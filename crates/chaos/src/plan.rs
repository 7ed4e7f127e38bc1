//! What befalls one connection: the shape of its flow, and events at bytes of either direction. Pure data.

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

/// What happens when a byte of the stream is reached; everything before that byte has been passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Both peers see an orderly end, wherever in a message that is.
    Fin,
    /// Both peers see a reset; what is under way may be lost with it.
    Rst,
    /// This direction ends in order, the other goes on.
    HalfClose,
    /// From here on this direction is swallowed; nobody is told, and nothing is closed.
    Blackhole,
    /// As [`Event::Blackhole`], for both directions.
    BlackholeBoth,
    /// One bit of this byte is the other one.
    Flip {
        /// Which bit; counted modulo 8.
        bit: u8,
    },
    /// The bytes before this one, so many of them as there are, come once more.
    Duplicate {
        /// How many.
        bytes: usize,
    },
    /// This byte and those after it are left out.
    Truncate {
        /// How many.
        bytes: usize,
    },
}

impl Event {
    /// One of the ways to cut a connection.
    pub fn any_cut(random: &mut Random) -> Self {
        if random.one_in(3) { Self::Rst } else { Self::Fin }
    }

    /// One of the ways to damage a stream, of up to `most` bytes.
    pub fn any_damage(random: &mut Random, most: u64) -> Self {
        let bytes = usize::try_from(random.between(1, most.max(1) + 1)).unwrap_or(1);
        match random.between(0, 4) {
            0 => Self::Duplicate { bytes },
            1 => Self::Truncate { bytes },
            // Half of them: the smallest damage is the hardest to notice.
            _ => Self::Flip { bit: random.between(0, 8) as u8 },
        }
    }
}

/// How the bytes of a direction flow, without one of them being changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Every read is held back for this long.
    pub delay: Duration,
    /// And for a random time up to this.
    pub jitter: Duration,
    /// Passed on in random pieces of at most so many bytes; 0: as they come.
    pub slice: usize,
    /// Bytes a second on average; 0: as fast as they come.
    pub throttle: u64,
}

/// All that befalls one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The flow from the client to the server.
    pub up_shape: Shape,
    /// The flow from the server to the client.
    pub down_shape: Shape,
    events: Vec<(Way, u64, Event)>,
}

impl Plan {
    /// The same flow in both directions.
    pub fn shaped(shape: Shape) -> Self {
        Self { up_shape: shape, down_shape: shape, events: Vec::new() }
    }

    /// An event at a byte of what the client sends; the first byte is 0.
    pub fn up(self, byte: u64, event: Event) -> Self {
        self.at(Way::Up, byte, event)
    }

    /// An event at a byte of what the server sends; the first byte is 0.
    pub fn down(self, byte: u64, event: Event) -> Self {
        self.at(Way::Down, byte, event)
    }

    /// An event at a byte of a direction; those at one byte happen in the order in which they were added.
    pub fn at(mut self, way: Way, byte: u64, event: Event) -> Self {
        self.events.push((way, byte, event));
        self
    }

    /// The flow of a direction.
    pub(crate) fn shape(&self, way: Way) -> Shape {
        match way {
            Way::Up => self.up_shape,
            Way::Down => self.down_shape,
        }
    }

    /// The events of a direction, the next one last.
    pub(crate) fn events(&self, way: Way) -> Vec<(u64, Event)> {
        let mut events: Vec<_> =
            self.events.iter().filter(|(at, ..)| *at == way).map(|(_, byte, event)| (*byte, *event)).collect();
        events.sort_by_key(|(byte, _)| *byte);
        events.reverse();
        events
    }
}
