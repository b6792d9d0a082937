//! One contract for all devices: the host twin always runs it, and a GPU does if the machine has one.
//!
//! On a machine with a GPU, `cargo nextest run --test contract_device` runs the whole contract; elsewhere the GPU half
//! prints that it was skipped.
#![forbid(unsafe_code)]

#[path = "contract/chunks.rs"]
mod chunks;
#[path = "contract/device.rs"]
mod device;

use bivouac_core::device::Device;
use bivouac_core::device::host::{HostDevice, HostModel};

fn twin() -> HostDevice {
    HostDevice::new(HostModel { memory_bytes: 1 << 30, ..HostModel::default() })
}

/// The GPU, or `None` with a loud note.
#[cfg(feature = "cuda")]
fn gpu() -> Option<bivouac_core::device::cuda::CudaDevice> {
    match bivouac_core::device::cuda::CudaDevice::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            eprintln!("SKIPPED: {error}; on a machine with a GPU: cargo nextest run --test contract_device");
            None
        }
    }
}

macro_rules! contract {
    ($($module:ident: $($name:ident),*;)*) => {
        mod host {
            $($(#[test] fn $name() { super::$module::$name(&super::twin() as &dyn super::Device); })*)*
        }
        #[cfg(feature = "cuda")]
        mod cuda {
            $($(#[test] fn $name() { if let Some(device) = super::gpu() { super::$module::$name(&device as &dyn super::Device); } })*)*
        }
    };
}

contract!(
    device:
    bytes_go_down_and_up_unchanged,
    digests_are_those_of_the_definition,
    a_block_may_lie_in_several_runs,
    odd_addresses_and_lengths_are_copied_whole,
    memory_is_mapped_step_by_step,
    ranges_that_are_wrong_are_refused,
    memory_runs_out_with_an_error,
    copies_on_a_stream_keep_their_order,
    a_gate_sees_every_byte,
    a_gate_that_panics_leaves_no_copy_under_way,
    many_small_regions_are_gathered,
    pieces_of_all_sizes_come_up_with_their_digests,
    empty_regions_may_stand_anywhere,
    spans_may_go_while_a_copy_is_on_its_way,
    pinned_and_other_memory_mix_in_a_transfer,
    a_transfer_goes_through_whatever_is_pinned,
    what_is_sent_arrives_with_its_digests,
    what_cannot_be_sent_is_refused,
    a_stream_waits_for_a_moment_of_another,
    rows_are_packed,
    rows_are_scattered_and_gathered_and_what_is_between_them_stays,
    rows_that_are_wrong_are_refused;
    chunks:
    tables_find_what_the_processor_finds,
    tables_need_only_what_has_changed,
    a_full_table_finds_less_and_nothing_wrong,
    wrong_questions_are_refused;
);

/// A thread that waits for the stream gets the error, as on a GPU.
#[test]
fn a_kernel_of_the_twin_that_panics_loses_the_device() {
    let twin = twin();
    let stream = twin.own_stream().expect("a stream");
    let span = twin.allocate(4096).expect("room");
    stream.launch(vec![span.clone()], |_| panic!("a kernel")).expect("enqueued");
    let stream: &dyn bivouac_core::device::Stream = &*stream;
    let error = stream.finish().expect_err("the device is lost");
    assert!(error.to_string().contains("it panicked"), "{error}");
    let error = stream.download(&mut [(span, &mut [0; 4096][..])], None).expect_err("it stays so");
    assert!(error.to_string().contains("it panicked"), "{error}");
}
