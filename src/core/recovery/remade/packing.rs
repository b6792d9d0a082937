//! Packs what ranks want of a region's bytes while these pass by in order. Each byte is looked at once for each rank that wants it.

use super::packet::Packet;
use crate::base::Rank;
use crate::decomposition::Cuboid;
use crate::decomposition::strides::Strides;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a region that go to one place in the memory of one rank: a piece of a box, or a run of elements.
pub(super) trait Way {
    /// The rank for which the bytes are.
    fn to(&self) -> Rank;

    /// The number of bytes.
    fn bytes(&self) -> usize;

    /// The place in the region of the byte with this number among them.
    fn place_of(&self, at: usize) -> usize;

    /// How many of the bytes come before this place in the region, which must not be before the first of them.
    fn before(&self, place: usize) -> usize;

    /// The bytes from one number up to another. `take` is told the place of each consecutive group in the region, and its length.
    fn each(&self, from: usize, to: usize, take: impl FnMut(usize, usize));

    /// Notes in a packet that `count` bytes follow, beginning with this number. The caller must append them.
    fn begin<'b>(&self, packet: &'b mut Packet, from: usize, count: usize) -> &'b mut Vec<u8>;
}

/// Memory that is filled with the bytes of such ways.
pub(super) trait Sink<W> {
    /// Takes the portions of a packet that has been checked.
    ///
    /// # Errors
    /// Why the portions cannot be taken.
    fn take(&mut self, portions: &[u8]) -> Result<(), String>;

    /// Takes bytes that are for this rank itself, beginning with this number. False if they do not belong here.
    fn put(&mut self, way: &W, from: usize, bytes: &[u8]) -> bool;
}

/// A piece of a box on its way.
pub(super) struct BoxWay {
    /// The rank for which it is.
    pub to: Rank,
    /// The box of that rank.
    pub number: u32,
    /// The piece.
    pub cuboid: Cuboid,
    /// The number of dimensions of the array.
    pub dims: usize,
    /// Where its bytes are, relative to the first byte of the part to which it belongs.
    pub strides: Strides,
    /// Where that part begins in the region.
    pub base: usize,
}

impl Way for BoxWay {
    fn to(&self) -> Rank {
        self.to
    }

    fn bytes(&self) -> usize {
        self.strides.bytes()
    }

    fn place_of(&self, at: usize) -> usize {
        self.base + self.strides.place_of(at)
    }

    fn before(&self, place: usize) -> usize {
        self.strides.before(place - self.base)
    }

    fn each(&self, from: usize, to: usize, mut take: impl FnMut(usize, usize)) {
        self.strides.each(from, to, |place, count| take(self.base + place, count));
    }

    fn begin<'b>(&self, packet: &'b mut Packet, from: usize, count: usize) -> &'b mut Vec<u8> {
        packet.begin(self.dims, self.number, &self.cuboid, from, count)
    }
}

/// Ways through a region, in the order of their first bytes.
pub(super) type Ways<'p, W> = Box<dyn Iterator<Item = W> + 'p>;

/// Makes empty buffers for packets.
pub(super) type Spare<'p> = Box<dyn Fn() -> Vec<u8> + 'p>;

/// Packs one region after the other.
pub(super) struct Packing<'p, W> {
    /// This rank. What it wants itself goes into no packet.
    rank: Rank,
    /// The ways through the current region that have not begun yet.
    waiting: Ways<'p, W>,
    /// The first of these ways.
    next: Option<W>,
    /// The ways that have begun, and how many bytes of each have passed.
    moving: Vec<(W, usize)>,
    packets: BTreeMap<Rank, Packet>,
    ready: VecDeque<(Rank, Vec<u8>)>,
    spare: Spare<'p>,
}

impl<'p, W: Way + 'p> Packing<'p, W> {
    /// Packs nothing yet, on this rank. Packets are made in buffers from `spare`.
    pub fn new(rank: Rank, spare: Spare<'p>) -> Packing<'p, W> {
        let (packets, ready) = (BTreeMap::new(), VecDeque::new());
        Packing { rank, waiting: Box::new(std::iter::empty()), next: None, moving: Vec::new(), packets, ready, spare }
    }

    /// Takes the ways through the next region. All ways through the previous region must have ended.
    pub fn begin(&mut self, mut ways: Ways<'p, W>) {
        self.next = ways.next();
        self.waiting = ways;
    }

    /// The first byte of the current region that is still wanted.
    pub fn first(&self) -> Option<usize> {
        let begun = self.moving.iter().map(|(way, gone)| way.place_of(*gone));
        begun.chain(self.next.iter().map(|way| way.place_of(0))).min()
    }

    /// The first wanted byte at `place` or after it, as far as the ways show that have begun or come next. `place` must not be before
    /// [`Packing::first`]. `None` if nothing is wanted there.
    pub fn next_from(&self, place: usize) -> Option<usize> {
        let of = |way: &W| {
            let gone = way.before(place);
            (gone < way.bytes()).then(|| way.place_of(gone))
        };
        let begun = self.moving.iter().filter_map(|(way, _)| of(way));
        let next = self.next.as_ref().map(|next| next.place_of(0).max(place));
        begun.chain(next).min()
    }

    /// Packs what is wanted of these bytes of the region, which begin at `start`. They must not begin after [`Packing::first`]. Packets
    /// become about as long as `limit` says for their receivers. What is for this rank itself goes to `here`. False if `here` has refused
    /// some of that.
    pub fn pack(
        &mut self,
        (start, bytes): (usize, &[u8]),
        limit: &impl Fn(Rank) -> usize,
        here: &mut impl FnMut(&W, usize, &[u8]) -> bool,
    ) -> bool {
        let end = start + bytes.len();
        let mut is_taken = true;
        let mut moving = std::mem::take(&mut self.moving);
        moving.retain_mut(|(way, gone)| {
            is_taken &= self.go(way, gone, (start, bytes), limit, here);
            *gone < way.bytes()
        });
        while let Some(mut way) = self.next.take_if(|next| next.place_of(0) < end) {
            let mut gone = 0;
            is_taken &= self.go(&mut way, &mut gone, (start, bytes), limit, here);
            if gone < way.bytes() {
                moving.push((way, gone));
            }
            self.next = self.waiting.next();
        }
        self.moving = moving;
        is_taken
    }

    /// Packs what one way takes from these bytes.
    fn go(
        &mut self,
        way: &mut W,
        gone: &mut usize,
        (start, bytes): (usize, &[u8]),
        limit: &impl Fn(Rank) -> usize,
        here: &mut impl FnMut(&W, usize, &[u8]) -> bool,
    ) -> bool {
        let until = way.before(start + bytes.len());
        let receiver = way.to();
        if receiver == self.rank {
            let (mut at, mut is_taken) = (*gone, true);
            way.each(*gone, until, |place, count| {
                is_taken &= here(way, at, &bytes[place - start..][..count]);
                at += count;
            });
            *gone = until;
            return is_taken;
        }
        let most = limit(receiver);
        while *gone < until {
            let to = until.min(*gone + most);
            let packet = self.packets.entry(receiver).or_insert_with(|| Packet::within((self.spare)()));
            let rows = way.begin(packet, *gone, to - *gone);
            way.each(*gone, to, |place, count| rows.extend_from_slice(&bytes[place - start..][..count]));
            if packet.len() >= most
                && let Some(packet) = self.packets.remove(&receiver)
            {
                self.ready.push_back((receiver, packet.finish()));
            }
            *gone = to;
        }
        true
    }

    /// The next full packet.
    pub fn next(&mut self) -> Option<(Rank, Vec<u8>)> {
        self.ready.pop_front()
    }

    /// Makes the remaining packets ready, because nothing more follows.
    pub fn finish(&mut self) {
        let packets = std::mem::take(&mut self.packets);
        let rest = packets.into_iter().map(|(to, packet)| (to, packet.finish()));
        self.ready.extend(rest.filter(|(_, packet)| !packet.is_empty()));
    }
}
