//! The bytes on a stream: first a greeting, then frames in one direction and counts in the other.
//!
//! A stream is made by the rank that sends. Its greeting proves to both ends that the other one knows the group's secret,
//! without revealing it. This matters because any process in the network may listen where a rank once listened, or call a
//! rank.
//!
//! | from | bytes |
//! |---|---|
//! | caller | [`Hello`] |
//! | called | a random number, and a keyed hash of the hello and that number |
//! | caller | another keyed hash of the same |
//! | called | how many frames of this stream it has; the caller continues there |
//! | caller | frames |
//! | called | how many frames it has, now and then |
//!
//! The bytes after the greeting are not protected: anybody who can change the packets of a connection can change its
//! frames.
#![forbid(unsafe_code)]

use super::super::{Label, MAX_MESSAGE_BYTES, MAX_PARCEL_BYTES};
use crate::base::Rank;

const MAGIC: [u8; 8] = *b"bvk-sock";

/// The length of a [`Hello`] in bytes.
pub(super) const HELLO_BYTES: usize = 8 + 16 + 4 + 4 + 1 + 16;
/// The length of the answer to a hello in bytes.
pub(super) const CHALLENGE_BYTES: usize = 16 + 32;
/// The length of the answer to a challenge in bytes.
pub(super) const PROOF_BYTES: usize = 32;
/// The length of a count of frames in bytes.
pub(super) const COUNT_BYTES: usize = 8;

/// The content of a stream. Parcels that are not taken must not delay messages, so each kind has a stream of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Kind {
    Messages,
    Parcels,
}

impl Kind {
    /// The length of the head of a frame in bytes.
    pub(super) fn head_bytes(self) -> usize {
        match self {
            Kind::Messages => 8 + 4 + 1,
            Kind::Parcels => 8 + 4 + 48,
        }
    }
}

/// The purpose of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// It is for the caller of the message layer.
    Message,
    /// It says that everything that the sender, and the ranks below it, have sent has arrived.
    AllSent,
    /// It says that everything that any rank has sent has arrived.
    Over,
}

/// The data that all ranks of a group know, and nobody else.
#[derive(Clone, Copy)]
pub(super) struct Group {
    /// Distinguishes groups; it is not secret.
    pub(super) id: [u8; 16],
    pub(super) secret: [u8; 32],
}

/// The first bytes that a caller sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub(super) from: Rank,
    pub(super) to: Rank,
    pub(super) kind: Kind,
    /// A random number, so that no old answer fits.
    pub(super) nonce: [u8; 16],
}

/// The side that proves something. The two proofs differ, so that neither side can send back the other's.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Called,
    Caller,
}

impl Hello {
    pub(super) fn encode(&self, group: &Group) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&group.id);
        bytes[24..28].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.to.0.to_le_bytes());
        bytes[32] = match self.kind {
            Kind::Messages => 1,
            Kind::Parcels => 2,
        };
        bytes[33..].copy_from_slice(&self.nonce);
        bytes
    }

    /// `None`: these bytes are not a hello to this rank of the group.
    pub(super) fn decode(bytes: &[u8; HELLO_BYTES], group: &Group, own: Rank, size: u32) -> Option<Hello> {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let kind = match bytes[32] {
            1 => Kind::Messages,
            2 => Kind::Parcels,
            _ => return None,
        };
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&bytes[33..]);
        let hello = Hello { from: Rank(number(24)), to: Rank(number(28)), kind, nonce };
        let is_ours = bytes[..8] == MAGIC && bytes[8..24] == group.id && hello.to == own && hello.from.0 < size;
        is_ours.then_some(hello)
    }

    /// The proof that a side knows the secret. It is compared in constant time.
    pub(super) fn proof(&self, group: &Group, side: Side, nonce: &[u8; 16]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&group.secret);
        hasher.update(match side {
            Side::Called => b"called",
            Side::Caller => b"caller",
        });
        hasher.update(&self.encode(group));
        hasher.update(nonce);
        hasher.finalize()
    }
}

/// The head of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// The number of the frame in its stream, from 0.
    pub(super) number: u64,
    pub(super) length: usize,
    /// The purpose, if this is the head of a message.
    pub(super) purpose: Purpose,
    /// The label, if this is the head of a parcel.
    pub(super) label: Label,
}

impl Head {
    pub(super) fn encode(&self, kind: Kind) -> Vec<u8> {
        let mut bytes = self.number.to_le_bytes().to_vec();
        bytes.extend((self.length as u32).to_le_bytes());
        match kind {
            Kind::Messages => bytes.push(match self.purpose {
                Purpose::Message => 0,
                Purpose::AllSent => 1,
                Purpose::Over => 2,
            }),
            Kind::Parcels => bytes.extend(self.label.iter().flat_map(|word| word.to_le_bytes())),
        }
        bytes
    }

    /// `None`: the bytes are not a valid head.
    pub(super) fn decode(bytes: &[u8], kind: Kind) -> Option<Head> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let length = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?) as usize;
        let (number, mut label, mut purpose) = (word(0)?, [0; 6], Purpose::Message);
        let longest = match kind {
            Kind::Messages => {
                purpose = match bytes.get(12)? {
                    0 => Purpose::Message,
                    1 => Purpose::AllSent,
                    2 => Purpose::Over,
                    _ => return None,
                };
                MAX_MESSAGE_BYTES
            }
            Kind::Parcels => {
                for (place, at) in label.iter_mut().zip((12..).step_by(8)) {
                    *place = word(at)?;
                }
                MAX_PARCEL_BYTES
            }
        };
        (length <= longest).then_some(Head { number, length, purpose, label })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Group = Group { id: [1; 16], secret: [2; 32] };
    const HELLO: Hello = Hello { from: Rank(3), to: Rank(5), kind: Kind::Parcels, nonce: [7; 16] };

    #[test]
    fn a_hello_is_for_one_rank_of_one_group() {
        let bytes = HELLO.encode(&GROUP);
        assert_eq!(Hello::decode(&bytes, &GROUP, Rank(5), 6), Some(HELLO));
        assert_eq!(Hello::decode(&bytes, &GROUP, Rank(4), 6), None);
        assert_eq!(Hello::decode(&bytes, &GROUP, Rank(5), 3), None, "there is no rank 3 among three");
        assert_eq!(Hello::decode(&bytes, &Group { id: [9; 16], ..GROUP }, Rank(5), 6), None);
        for at in 0..33 {
            let mut other = bytes;
            other[at] ^= 0x80;
            assert_eq!(Hello::decode(&other, &GROUP, Rank(5), 6), None, "byte {at}");
        }
    }

    #[test]
    fn a_proof_fits_one_side_one_hello_one_number_and_one_secret() {
        let proof = HELLO.proof(&GROUP, Side::Called, &[4; 16]);
        assert_eq!(proof, HELLO.proof(&GROUP, Side::Called, &[4; 16]));
        for other in [
            HELLO.proof(&GROUP, Side::Caller, &[4; 16]),
            HELLO.proof(&GROUP, Side::Called, &[5; 16]),
            HELLO.proof(&Group { secret: [3; 32], ..GROUP }, Side::Called, &[4; 16]),
            Hello { nonce: [8; 16], ..HELLO }.proof(&GROUP, Side::Called, &[4; 16]),
            Hello { kind: Kind::Messages, ..HELLO }.proof(&GROUP, Side::Called, &[4; 16]),
        ] {
            assert_ne!(proof, other);
        }
    }

    #[test]
    fn a_head_comes_back_and_one_of_too_many_bytes_is_none() {
        for (kind, longest) in [(Kind::Messages, MAX_MESSAGE_BYTES), (Kind::Parcels, MAX_PARCEL_BYTES)] {
            for (length, is_head) in [(0, true), (longest, true), (longest + 1, false), (u32::MAX as usize, false)] {
                let label = if kind == Kind::Parcels { [1, 2, 3, 4, 5, u64::MAX] } else { [0; 6] };
                let purpose = if kind == Kind::Messages { Purpose::Over } else { Purpose::Message };
                let head = Head { number: 1 << 40, length, purpose, label };
                let bytes = head.encode(kind);
                assert_eq!(bytes.len(), kind.head_bytes());
                assert_eq!(Head::decode(&bytes, kind), is_head.then_some(head));
                assert_eq!(Head::decode(&bytes[..bytes.len() - 1], kind), None);
            }
        }
        let mut bytes = Head { number: 0, length: 0, purpose: Purpose::Message, label: [0; 6] }.encode(Kind::Messages);
        bytes[12] = 3;
        assert_eq!(Head::decode(&bytes, Kind::Messages), None);
    }
}
