//! Injected faults of the device, and damage on its link: the application continues, lost data is reported or skipped, and no wrong
//! byte is ever returned.
//!
//! `faults_device/device.rs` is the host twin behind switches; `histories.rs` and `checkpoints.rs` set the switches.
#![forbid(unsafe_code)]

#[path = "faults_device/checkpoints.rs"]
mod checkpoints;
#[path = "faults_device/device.rs"]
mod device;
#[path = "faults_device/histories.rs"]
mod histories;
#[path = "common/limit.rs"]
mod limit;
#[path = "faults_device/logs.rs"]
mod logs;
mod machine;

/// The multiples of 4096 at which these bytes begin in `memory`. The caches and the segment place data only there.
fn places_of(bytes: &[u8], memory: &[u8]) -> Vec<usize> {
    let is_here = |at: &usize| memory[*at..].starts_with(&bytes[..64]);
    (0..memory.len()).step_by(4096).filter(is_here).collect()
}

/// Flips a bit in every place of a file that holds these bytes, and returns the number of places.
fn damage_file(path: &std::path::Path, bytes: &[u8]) -> usize {
    use std::os::unix::fs::FileExt;
    let places = places_of(bytes, &std::fs::read(path).expect("readable"));
    let file = std::fs::File::options().write(true).open(path).expect("writable");
    for place in &places {
        file.write_all_at(&[bytes[0] ^ 1], *place as u64).expect("written");
    }
    places.len()
}
