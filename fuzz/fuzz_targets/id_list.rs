//! `cargo fuzz` target; what it does stands in `tests/fuzz_targets`.
#![no_main]

#[path = "../../tests/fuzz_targets/mod.rs"]
mod fuzz_targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz_targets::id_list(bytes);
});
