//! Small metadata through `bincode`: fixed-width little-endian integers, always with a limit.
//!
//! This is the only file that names `bincode` (unmaintained since 2025, RUSTSEC-2025-0141): replacing it with a wire-identical crate
//! requires no other changes. Callers verify magic, version, length and checksum first. The bytes that arrive here were therefore written
//! by Bivouac unless somebody forged them; the limit keeps a forgery harmless.

use super::FormatError;
use serde::{Serialize, de::DeserializeOwned};

/// The maximum number of bytes that any encoded metadata may have, and that decoding may allocate. A region table of
/// 100,000 regions with long names needs about 10 MiB.
pub const LIMIT: usize = 64 << 20;

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_fixed_int_encoding().with_little_endian().with_limit::<LIMIT>()
}

/// Encodes a value.
///
/// # Errors
/// [`FormatError`] if the value takes more than [`LIMIT`] bytes and could therefore not be decoded.
pub fn encode<T: Serialize>(what: &'static str, value: &T) -> Result<Vec<u8>, FormatError> {
    let bytes = bincode::serde::encode_to_vec(value, config());
    let bytes = bytes.map_err(|error| FormatError::invalid(what, error.to_string()))?;
    // The configured limit applies only to decoding.
    if bytes.len() > LIMIT {
        return Err(FormatError::invalid(
            what,
            format!("it has {} bytes, but at most {LIMIT} are allowed", bytes.len()),
        ));
    }
    Ok(bytes)
}

/// Decodes a value that fills `bytes` exactly.
pub fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, FormatError> {
    let (value, used) = bincode::serde::decode_from_slice(bytes, config())
        .map_err(|error| FormatError::invalid(what, error.to_string()))?;
    if used != bytes.len() {
        return Err(FormatError::invalid(what, format!("{} trailing bytes", bytes.len() - used)));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_claimed_length_is_an_error_and_not_an_allocation() {
        let bytes = u64::MAX.to_le_bytes();
        assert!(decode::<Vec<u8>>("test", &bytes).is_err());
        let bytes = (1u64 << 40).to_le_bytes();
        assert!(decode::<Vec<u64>>("test", &bytes).is_err());
    }

    #[test]
    fn what_could_not_be_decoded_is_not_encoded() {
        let largest = vec![0u8; LIMIT - 8];
        let bytes = encode("test", &largest).unwrap();
        assert!(bytes.len() == LIMIT && decode::<Vec<u8>>("test", &bytes).is_ok());
        assert!(encode("test", &vec![0u8; LIMIT - 7]).is_err());
    }

    #[test]
    fn trailing_bytes_are_refused() {
        let mut bytes = encode("test", &7u32).unwrap();
        assert_eq!(decode::<u32>("test", &bytes), Ok(7));
        bytes.push(0);
        assert!(decode::<u32>("test", &bytes).is_err());
    }
}
