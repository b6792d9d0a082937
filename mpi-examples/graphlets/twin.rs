//! The host twin of a GPU as a machine.
#![forbid(unsafe_code)]

use super::super::subgraphs::Problem;
use super::{Machine, zeros};
use bivouac::device::host::{HostDevice, HostModel};
use bivouac::device::{Device, DeviceError, DeviceSpan, Priority, Stream};
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

/// Memory of the twin in addition to the counters.
const SPARE_BYTES: u64 = 1 << 30;

/// A device in host memory.
pub struct Twin {
    problem: Arc<Problem>,
    twin: Arc<HostDevice>,
    device: Arc<dyn Device>,
    stream: Arc<dyn Stream>,
    counters: DeviceSpan,
}

impl Twin {
    /// A twin with room for the counters and the caches.
    ///
    /// # Errors
    /// The stream's thread could not be started.
    pub fn open(problem: &Arc<Problem>) -> Result<Twin, DeviceError> {
        let memory_bytes = 16 * problem.counters() as u64 + SPARE_BYTES;
        let twin = Arc::new(HostDevice::new(HostModel { memory_bytes, ..HostModel::default() }));
        let stream = twin.stream(Priority::High)?;
        let counters = zeros(&*twin, &*stream, problem.counters())?;
        Ok(Twin { problem: problem.clone(), device: twin.clone(), twin, stream, counters })
    }
}

impl Machine for Twin {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    fn counters(&self) -> &DeviceSpan {
        &self.counters
    }

    fn count(&mut self, roots: Range<u32>) -> Result<(), Box<dyn Error>> {
        let counted = self.twin.compute(&[&self.counters], |parts| {
            let [counters] = parts else { return Ok(()) };
            self.problem.count(roots, bytemuck::cast_slice_mut(counters))
        });
        Ok(counted??)
    }
}
