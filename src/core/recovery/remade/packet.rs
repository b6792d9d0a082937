//! Elements on their way from a reader to the rank that wants them: some bytes of some pieces, and a digest of them all, which is computed
//! from the checked bytes.

use crate::decomposition::Cuboid;
use crate::format::numbers;
use xxhash_rust::xxh3::xxh3_128;

/// The first byte of a post that carries elements.
pub const DATA: u8 = 1;
/// The first byte of a post that says how many bytes may be under way.
pub const CREDIT: u8 = 2;

const DIGEST: usize = 16;

/// A packet that is being filled.
#[derive(Default)]
pub struct Packet {
    bytes: Vec<u8>,
    /// Where the previous run ends in the memory of its receiver.
    end: usize,
}

impl Packet {
    /// An empty packet, in an empty buffer.
    pub fn within(bytes: Vec<u8>) -> Packet {
        Packet { bytes, end: 0 }
    }

    /// The length of the packet so far, in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds `count` bytes of a piece of box `number`, beginning with its byte `from`. The caller must append the bytes themselves.
    pub fn begin(&mut self, dims: usize, number: u32, piece: &Cuboid, from: usize, count: usize) -> &mut Vec<u8> {
        self.open();
        numbers::put(&mut self.bytes, u64::from(number));
        piece.put(dims, &mut self.bytes);
        numbers::put(&mut self.bytes, from as u64);
        numbers::put(&mut self.bytes, count as u64);
        &mut self.bytes
    }

    /// Adds `count` bytes for the place `target` in a rank's memory. The caller must append the bytes themselves. A packet has either
    /// pieces of boxes or runs.
    pub fn begin_run(&mut self, target: usize, count: usize) -> &mut Vec<u8> {
        self.open();
        numbers::put(&mut self.bytes, numbers::from_step(target.wrapping_sub(self.end) as i64));
        numbers::put(&mut self.bytes, count as u64);
        self.end = target.wrapping_add(count);
        &mut self.bytes
    }

    fn open(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.push(DATA);
            self.bytes.extend([0; DIGEST]);
        }
    }

    /// The packet as it is sent, with its digest.
    pub fn finish(mut self) -> Vec<u8> {
        if let Some((head, rest)) = self.bytes.split_at_mut_checked(1 + DIGEST) {
            head[1..].copy_from_slice(&xxh3_128(rest).to_le_bytes());
        }
        self.bytes
    }
}

/// Compares the digest of a packet, which is given without its first byte, and returns the portions of the packet.
///
/// # Errors
/// Why the packet cannot be taken.
pub fn checked(packet: &[u8]) -> Result<&[u8], String> {
    let (digest, portions) = packet.split_first_chunk::<DIGEST>().ok_or("it is truncated")?;
    if xxh3_128(portions).to_le_bytes() != *digest {
        return Err("its digest is wrong: it was damaged in transit".into());
    }
    Ok(portions)
}

/// Gives each piece of a box in the portions of a packet to `put`: the box, the piece, its first byte, and the bytes. `put` says whether
/// the bytes could be put where they belong.
///
/// # Errors
/// Why the pieces cannot be taken.
pub fn unpack(
    portions: &[u8],
    dims: usize,
    mut put: impl FnMut(u32, &Cuboid, usize, &[u8]) -> bool,
) -> Result<(), String> {
    let mut rest = portions;
    while !rest.is_empty() {
        let mut portion = || {
            let number = u32::try_from(numbers::take(&mut rest)?).ok()?;
            let piece = Cuboid::take(dims, &mut rest)?;
            let from = usize::try_from(numbers::take(&mut rest)?).ok()?;
            let count = usize::try_from(numbers::take(&mut rest)?).ok()?;
            let (bytes, behind) = rest.split_at_checked(count)?;
            rest = behind;
            Some((number, piece, from, bytes))
        };
        let (number, piece, from, bytes) = portion().ok_or("it is truncated")?;
        if !put(number, &piece, from, bytes) {
            return Err(format!("it has elements {} for box {number}, which does not contain them", piece.shown(dims)));
        }
    }
    Ok(())
}

/// Gives each run in the portions of a packet to `put`: its place in the memory of this rank, and the bytes.
///
/// # Errors
/// Why the runs cannot be taken.
pub fn unpack_runs(portions: &[u8], mut put: impl FnMut(usize, &[u8]) -> bool) -> Result<(), String> {
    let (mut rest, mut end) = (portions, 0usize);
    while !rest.is_empty() {
        let mut portion = || {
            let target = end.wrapping_add(numbers::to_step(numbers::take(&mut rest)?) as usize);
            let count = usize::try_from(numbers::take(&mut rest)?).ok()?;
            let (bytes, behind) = rest.split_at_checked(count)?;
            rest = behind;
            Some((target, bytes))
        };
        let (target, bytes) = portion().ok_or("it is truncated")?;
        if !put(target, bytes) {
            let count = bytes.len();
            return Err(format!("it has {count} bytes for place {target} of a memory that ends before that"));
        }
        end = target.wrapping_add(bytes.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_comes_back_and_a_damaged_one_is_refused() {
        let piece = Cuboid::at(&[3, 4], &[2, 2]).expect("two");
        let mut packet = Packet::default();
        packet.begin(2, 7, &piece, 1, 3).extend([1, 2, 3]);
        packet.begin(2, 0, &piece, 0, 0);
        let sent = packet.finish();
        assert_eq!(sent[0], DATA);
        let mut got = Vec::new();
        let take = |sent: &[u8], got: &mut Vec<_>| {
            unpack(checked(&sent[1..])?, 2, |number, piece, from, bytes| {
                got.push((number, *piece, from, bytes.to_vec()));
                true
            })
        };
        assert_eq!(take(&sent, &mut got), Ok(()));
        assert_eq!(got, [(7, piece, 1, vec![1, 2, 3]), (0, piece, 0, vec![])]);
        for at in 1..sent.len() {
            let mut flipped = sent.clone();
            flipped[at] ^= 4;
            assert!(take(&flipped, &mut Vec::new()).unwrap_err().contains("digest"), "byte {at}");
        }
        assert!(take(&sent[..10], &mut Vec::new()).is_err());
        assert!(
            unpack(checked(&sent[1..]).expect("whole"), 2, |_, _, _, _| false)
                .unwrap_err()
                .contains("[3..5, 4..6] for box 7")
        );
        assert!(Packet::default().finish().is_empty());
    }

    #[test]
    fn runs_come_back_and_those_that_cannot_be_are_refused() {
        let mut packet = Packet::default();
        packet.begin_run(100, 2).extend([1, 2]);
        packet.begin_run(102, 1).extend([3]);
        packet.begin_run(7, 0);
        let sent = packet.finish();
        let portions = checked(&sent[1..]).expect("whole");
        let mut got = Vec::new();
        let take = |place, bytes: &[u8]| {
            got.push((place, bytes.to_vec()));
            true
        };
        assert_eq!(unpack_runs(portions, take), Ok(()));
        assert_eq!(got, [(100, vec![1, 2]), (102, vec![3]), (7, vec![])]);
        assert!(unpack_runs(portions, |_, _| false).unwrap_err().contains("place 100"));
        for length in [1, portions.len() - 1] {
            assert!(unpack_runs(&portions[..length], |_, _| true).unwrap_err().contains("truncated"));
        }
    }
}
