//! One direction of a far link: a drop-tail queue, a transmitter with a rate, and a line with a delay.
//!
//! Reads no clock: each call gets the time since the link began. A packet waits in the queue until the transmitter has
//! sent its last byte, and arrives one delay later. The transmitter works on its own clock, so a call that comes late
//! delays no packet but the ones that it delivers.

use std::{collections::VecDeque, time::Duration};

use super::LinkCounters;

/// A packet and a time: in the queue, its arrival there; on the line, its arrival at the other end.
type TimedPacket = (Duration, Vec<u8>);

pub(super) struct PacketQueue {
    bits_per_second: u64,
    /// Bytes that may wait. A packet that does not fit is dropped.
    capacity: usize,
    delay: Duration,
    waiting: VecDeque<TimedPacket>,
    waiting_bytes: usize,
    on_line: VecDeque<TimedPacket>,
    /// When the transmitter has sent everything that it has begun.
    free_at: Duration,
    counters: LinkCounters,
}

impl PacketQueue {
    pub(super) fn new(bits_per_second: u64, capacity: usize, delay: Duration) -> Self {
        Self {
            bits_per_second,
            capacity,
            delay,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            on_line: VecDeque::new(),
            free_at: Duration::ZERO,
            counters: LinkCounters::default(),
        }
    }

    /// Takes a packet from the sender, or drops it if the queue is full.
    pub(super) fn push(&mut self, now: Duration, packet: &[u8]) {
        self.transmit(now);
        if self.waiting_bytes + packet.len() > self.capacity {
            self.counters.dropped += 1;
            return;
        }
        self.waiting_bytes += packet.len();
        self.waiting.push_back((now, packet.to_vec()));
    }

    /// The next packet that has arrived at the other end.
    pub(super) fn pop(&mut self, now: Duration) -> Option<Vec<u8>> {
        self.transmit(now);
        let (due, _) = self.on_line.front()?;
        if *due > now {
            return None;
        }
        let (_, packet) = self.on_line.pop_front()?;
        self.counters.packets += 1;
        self.counters.bytes += packet.len() as u64;
        Some(packet)
    }

    /// When the next packet arrives at the other end.
    pub(super) fn next_arrival(&self) -> Option<Duration> {
        match self.on_line.front() {
            Some((due, _)) => Some(*due),
            None => self.waiting.front().map(|packet| self.sent_at(packet) + self.delay),
        }
    }

    /// Changes the delay of the packets that are not on the line yet. Packets never overtake each other, so after a
    /// change to a shorter delay they wait for the ones before them.
    pub(super) fn set_delay(&mut self, now: Duration, delay: Duration) {
        self.transmit(now);
        self.delay = delay;
    }

    /// Stops the transmitter for some time. Packets on the line still arrive, and the queue takes more until it is full.
    pub(super) fn stall(&mut self, now: Duration, time: Duration) {
        self.transmit(now);
        self.free_at = self.free_at.max(now) + time;
    }

    pub(super) fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// Puts everything on the line that the transmitter has sent by now.
    fn transmit(&mut self, now: Duration) {
        while let Some(packet) = self.waiting.front() {
            let sent_at = self.sent_at(packet);
            if sent_at > now {
                return;
            }
            let Some((_, packet)) = self.waiting.pop_front() else { return };
            self.waiting_bytes -= packet.len();
            self.free_at = sent_at;
            let before = self.on_line.back().map_or(Duration::ZERO, |(due, _)| *due);
            self.on_line.push_back((before.max(sent_at + self.delay), packet));
        }
    }

    /// When the transmitter has sent this packet, which is the first in the queue.
    fn sent_at(&self, (arrived, packet): &TimedPacket) -> Duration {
        let nanoseconds = packet.len() as u64 * 8 * 1_000_000_000 / self.bits_per_second;
        self.free_at.max(*arrived) + Duration::from_nanos(nanoseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A queue for ten packets of 1,000 bytes, each of which takes 1 ms to send and 50 ms to arrive.
    fn queue() -> PacketQueue {
        PacketQueue::new(8_000_000, 10_000, ms(50))
    }

    /// The first byte of each packet, with the time of its arrival, in a look every millisecond.
    fn arrivals(queue: &mut PacketQueue, until: u64) -> Vec<(u64, u8)> {
        let mut seen = Vec::new();
        for now in 0..=until {
            while let Some(packet) = queue.pop(ms(now)) {
                seen.push((now, packet[0]));
            }
        }
        seen
    }

    #[test]
    fn packets_leave_at_the_rate_and_arrive_one_delay_later() {
        let mut queue = queue();
        for number in 0..3 {
            queue.push(ms(5), &[number; 1000]);
        }
        assert_eq!(queue.next_arrival(), Some(ms(56)));
        assert_eq!(arrivals(&mut queue, 100), [(56, 0), (57, 1), (58, 2)]);
        assert_eq!(queue.next_arrival(), None);
    }

    #[test]
    fn a_packet_that_finds_the_queue_full_is_dropped() {
        let mut queue = queue();
        for number in 0..12 {
            queue.push(ms(0), &[number; 1000]);
        }
        // One packet has been sent, so there is room for one.
        queue.push(ms(1), &[12; 1000]);
        queue.push(ms(1), &[13; 1000]);
        let numbers: Vec<u8> = arrivals(&mut queue, 100).into_iter().map(|(_, number)| number).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12]);
        assert_eq!(queue.counters(), LinkCounters { packets: 11, bytes: 11_000, dropped: 3 });
    }

    #[test]
    fn a_changed_delay_applies_to_later_packets_and_keeps_their_order() {
        let mut queue = queue();
        queue.push(ms(0), &[0; 1000]);
        queue.set_delay(ms(2), ms(5));
        queue.push(ms(2), &[1; 1000]);
        queue.push(ms(60), &[2; 1000]);
        assert_eq!(arrivals(&mut queue, 100), [(51, 0), (51, 1), (66, 2)]);
    }

    #[test]
    fn a_stall_keeps_what_the_queue_holds_and_delays_it() {
        let mut queue = queue();
        queue.push(ms(0), &[0; 1000]);
        queue.push(ms(0), &[1; 1000]);
        queue.stall(ms(1), ms(100));
        for number in 2..20 {
            queue.push(ms(2), &[number; 1000]);
        }
        let seen = arrivals(&mut queue, 300);
        assert_eq!(seen[..3], [(51, 0), (152, 1), (153, 2)]);
        assert_eq!((seen.len(), queue.counters().dropped), (11, 9));
    }
}
