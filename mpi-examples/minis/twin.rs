//! The host twin of a GPU as a machine.
#![forbid(unsafe_code)]

use super::super::kernels::{Kernel, Numbers, run};
use super::{Machine, Result};
use bivouac::device::host::{HostDevice, HostModel, HostStream};
use bivouac::device::{Device, DeviceSpan, Stream};
use std::sync::Arc;

/// A device in host memory.
pub struct Twin {
    device: Arc<dyn Device>,
    stream: Arc<HostStream>,
}

impl Twin {
    /// A twin with this much memory, and a link of this many MiB per second.
    ///
    /// # Errors
    /// The stream's thread could not be started.
    pub fn open(memory_bytes: u64, link: Option<u32>) -> Result<Twin> {
        let link_bytes_per_s = link.map(|mib| f64::from(mib) * f64::from(1 << 20));
        let twin = HostDevice::new(HostModel { memory_bytes, link_bytes_per_s, ..HostModel::default() });
        let stream = twin.own_stream()?;
        Ok(Twin { device: Arc::new(twin), stream })
    }
}

impl Machine for Twin {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    fn launch(&self, kernel: Kernel, arrays: &[&DeviceSpan], numbers: Numbers) -> Result<()> {
        let arrays = arrays.iter().map(|&span| span.clone()).collect();
        self.stream.launch(arrays, move |slices| run(kernel, numbers, slices))
    }
}
