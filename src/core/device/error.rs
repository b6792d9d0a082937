//! What can go wrong on a device, shaped by what the caller can do about it.
#![forbid(unsafe_code)]

use crate::base::units::Bytes;

/// Why a device did not do what it was asked to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// This machine has no CUDA driver library. CPU-only work continues.
    #[error("no CUDA driver library (libcuda.so.1) was found: install the driver, or use the host device")]
    NoLibrary,
    /// There is a driver but no GPU (or none that this process may see).
    #[error("the CUDA driver does not see GPU number {ordinal}: check CUDA_VISIBLE_DEVICES and the job's GPU request")]
    NoDevice {
        /// The number that was asked for.
        ordinal: usize,
    },
    /// The driver is too old.
    #[error("the CUDA driver supports CUDA {found}, but {needed} or later is needed: update the driver")]
    DriverTooOld {
        /// What it supports, as `major.minor`.
        found: String,
        /// The oldest version that works.
        needed: &'static str,
    },
    /// The kernels could not be made for this device.
    #[error("the GPU kernels cannot be loaded: {reason}; install NVRTC (libnvrtc) where the job runs")]
    Kernels {
        /// Why.
        reason: String,
    },
    /// The device does not have enough memory.
    #[error("no device memory for {what} of {}", Bytes(*bytes))]
    OutOfMemory {
        /// What was asked for.
        what: &'static str,
        /// How much of it.
        bytes: u64,
    },
    /// A pointer or stream belongs to a device or context other than this one.
    #[error("address {address:#x} is not memory of device {ordinal} in this context: {reason}")]
    Foreign {
        /// The address.
        address: u64,
        /// The device that was asked.
        ordinal: usize,
        /// What it belongs to instead.
        reason: String,
    },
    /// A range extends beyond the end of its memory, or into memory that is not mapped.
    #[error("device range {offset}+{bytes} is not usable: {reason}")]
    Range {
        /// Offset.
        offset: u64,
        /// Length.
        bytes: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The context is lost: nothing on this device works any more in this process.
    #[error("device {ordinal} is lost to this process: {reason}")]
    Lost {
        /// The device.
        ordinal: usize,
        /// What the driver said.
        reason: String,
    },
    /// A call failed, but the device may still work.
    #[error("device {ordinal}: {call}: {reason}")]
    Failed {
        /// The device.
        ordinal: usize,
        /// The call.
        call: &'static str,
        /// What the driver said.
        reason: String,
    },
}

impl DeviceError {
    /// Is the whole device gone for this process?
    pub fn is_lost(&self) -> bool {
        matches!(self, DeviceError::Lost { .. })
    }
}
