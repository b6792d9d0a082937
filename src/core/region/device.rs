//! Boxes of a decomposed array in device memory, without the memory around them.

use crate::decomposition::strides::Strides;
use crate::device::{DeviceSpan, Result, RowCopy, Rows};

/// Describes bytes of device memory as rows.
///
/// # Errors
/// [`DeviceError::Range`](crate::device::DeviceError::Range) if some of the bytes lie outside the memory.
pub fn rows_in(memory: &DeviceSpan, strides: &Strides) -> Result<Rows> {
    let (first, again) = strides.shape();
    let again = again.iter().map(|(count, distance)| (*count as u64, *distance as u64));
    Rows::new(memory.clone(), first as u64, strides.row() as u64, again.collect())
}

/// The rows of boxes in device memory. Their bytes follow box by box, each box in memory order.
#[derive(Clone, Debug)]
pub struct DeviceRows {
    boxes: Vec<Rows>,
    /// The offset at which each box begins, and the end of the last box.
    starts: Vec<u64>,
}

impl DeviceRows {
    /// The rows of these boxes, in order.
    pub fn new(boxes: Vec<Rows>) -> DeviceRows {
        let mut starts = vec![0];
        starts.extend(boxes.iter().scan(0, |end, rows| {
            *end += rows.bytes();
            Some(*end)
        }));
        DeviceRows { boxes, starts }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The row copies that make up `bytes` bytes starting at byte `at`, with their places in memory that holds exactly these bytes.
    pub fn copies(&self, at: u64, bytes: u64) -> Vec<RowCopy> {
        let (begin, end) = (at, at + bytes);
        let first = self.starts.partition_point(|start| *start <= begin).saturating_sub(1);
        let all = self.boxes.iter().zip(&self.starts).skip(first);
        let touched = all.take_while(|(_, start)| **start < end).filter_map(|(rows, start)| {
            let (from, to) = (begin.max(*start), end.min(start + rows.bytes()));
            (from < to).then(|| RowCopy {
                rows: rows.clone(),
                at: from - start,
                bytes: to - from,
                packed: from - begin,
            })
        });
        touched.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::host::{HostDevice, HostModel};
    use crate::device::{Device, Priority};

    #[test]
    fn some_bytes_of_boxes_are_those_of_their_rows() {
        let device = HostDevice::new(HostModel::default());
        let stream = device.stream(Priority::High).expect("a stream");
        let memory = device.allocate(1000).expect("room");
        let bytes: Vec<u8> = (0..1000u32).map(|at| (at * 7 % 251) as u8).collect();
        stream.upload(&[(&bytes, memory.clone())], None).expect("there");
        let rows = |first, row, again: &[(u64, u64)]| Rows::new(memory.clone(), first, row, again.to_vec());
        let boxes =
            [rows(3, 5, &[(2, 100), (3, 9)]), rows(0, 4, &[(0, 8)]), rows(990, 10, &[]), rows(500, 1, &[(4, 2)])];
        let of = DeviceRows::new(boxes.into_iter().map(|rows| rows.expect("inside")).collect());
        let mut expected = Vec::new();
        for outer in 0..2 {
            for inner in 0..3 {
                expected.extend_from_slice(&bytes[3 + outer * 100 + inner * 9..][..5]);
            }
        }
        expected.extend_from_slice(&bytes[990..]);
        expected.extend([500, 502, 504, 506].map(|at: usize| bytes[at]));
        assert_eq!(of.bytes(), expected.len() as u64);
        let packed = device.allocate(of.bytes()).expect("room");
        for begin in 0..expected.len() {
            for end in begin..=expected.len() {
                let part = packed.part(begin as u64, (end - begin) as u64).expect("inside");
                stream.pack(&of.copies(begin as u64, (end - begin) as u64), &part).expect("packed");
                let mut found = vec![0; end - begin];
                stream.download(&mut [(part, &mut found)], None).expect("read");
                assert_eq!(found, expected[begin..end], "{begin}..{end}");
            }
        }
        assert!(rows(991, 10, &[]).is_err() && rows(0, 5, &[(200, 5)]).is_ok() && rows(1, 5, &[(200, 5)]).is_err());
        assert!(rows(0, 1, &[(u64::MAX, 3), (3, u64::MAX)]).is_err());
    }
}
