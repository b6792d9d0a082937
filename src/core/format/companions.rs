//! The record, in a checkpoint, of output files that grow along with the run.

use super::{FormatError, codec};
use serde::{Deserialize, Serialize};

/// The maximum number of bytes before the recorded length whose digest is kept.
pub const TAIL: u64 = 64 << 10;

/// An output file as it was at the capture.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CompanionRecord {
    /// The path by which the program knows it, as the system's bytes.
    pub name: Vec<u8>,
    /// The file's own name. It differs from the name in the path if a restart has started another file.
    pub file: Vec<u8>,
    /// Its length in bytes; 0 also if it did not exist.
    pub length: u64,
    /// The digest of the last [`TAIL`] bytes, or of all bytes if there were fewer.
    pub tail: [u8; 16],
}

/// Encodes records as the bytes of the region.
///
/// # Errors
/// [`FormatError`] if there are too many records.
pub fn encode(records: &[CompanionRecord]) -> Result<Vec<u8>, FormatError> {
    codec::encode("companions", &records)
}

/// Decodes the bytes that [`encode`] has made.
///
/// # Errors
/// [`FormatError`] for any other bytes.
pub fn decode(bytes: &[u8]) -> Result<Vec<CompanionRecord>, FormatError> {
    codec::decode("companions", bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_are_written_and_nothing_else_is_one() {
        let record = CompanionRecord {
            name: b"out/traj.xtc".to_vec(),
            file: b"traj.part0002.xtc".to_vec(),
            length: 1 << 40,
            tail: [7; 16],
        };
        let bytes = encode(&[record.clone(), record.clone()]).unwrap();
        assert_eq!(decode(&bytes).unwrap(), [record.clone(), record]);
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(decode(&[0xff; 64]).is_err() && decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}
