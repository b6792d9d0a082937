//! Events of a GPU. They are not cudarc's, which answer with errors that the application left in the context, and take
//! these errors away from it.

use super::super::{Moment, Result};
use super::context::Shared;
use crate::base::log;
use cudarc::driver::{DriverError, result, sys};
use std::sync::Arc;

/// A point in the work of a stream.
pub(super) struct Event {
    shared: Arc<Shared>,
    handle: sys::CUevent,
}

// SAFETY: the driver allows an event to be used and destroyed from any thread of the process.
unsafe impl Send for Event {}
// SAFETY: as above; there is no state on our side.
unsafe impl Sync for Event {}

impl Event {
    /// An event whose time can be read, and for which threads wait without sleeping.
    pub(super) fn timed(shared: &Arc<Shared>) -> Result<Event> {
        Event::new(shared, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// An event on which threads sleep while they wait.
    pub(super) fn blocking(shared: &Arc<Shared>) -> Result<Event> {
        Event::new(shared, sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC)
    }

    fn new(shared: &Arc<Shared>, flags: sys::CUevent_flags) -> Result<Event> {
        let _bound = shared.bind()?;
        let handle = result::event::create(flags).map_err(|error| shared.failed("cuEventCreate", error))?;
        Ok(Event { shared: shared.clone(), handle })
    }

    /// Records it after everything enqueued on a stream.
    ///
    /// # Safety
    /// `stream` is a stream of this context, and lives.
    pub(super) unsafe fn record(&self, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the event lives as long as `self`; the stream is as the caller says, who has bound the context.
        let recorded = unsafe { result::event::record(self.handle, stream) };
        recorded.map_err(|error| self.shared.failed("cuEventRecord", error))
    }

    /// Waits until the stream has reached it.
    pub(super) fn wait(&self) -> Result<()> {
        let _bound = self.shared.bind()?;
        // SAFETY: the event lives as long as `self`.
        let waited = unsafe { result::event::synchronize(self.handle) };
        waited.map_err(|error| self.shared.failed("cuEventSynchronize", error))
    }

    /// Has the stream reached it?
    pub(super) fn is_done(&self) -> Result<bool> {
        let _bound = self.shared.bind()?;
        // SAFETY: the event lives as long as `self`.
        match unsafe { result::event::query(self.handle) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(self.shared.failed("cuEventQuery", error)),
        }
    }

    /// Seconds from this event to a later one, once the stream has reached both.
    pub(super) fn seconds_to(&self, end: &Event) -> Result<f64> {
        let _bound = self.shared.bind()?;
        // SAFETY: both events live, and are of this context and one stream.
        let elapsed = unsafe { result::event::elapsed(self.handle, end.handle) };
        elapsed.map(|ms| f64::from(ms) / 1e3).map_err(|error| self.shared.failed("cuEventElapsedTime", error))
    }
}

impl Event {
    /// Makes a stream wait for it.
    ///
    /// # Safety
    /// `stream` is a stream of this context, which is bound, and lives.
    pub(super) unsafe fn hold_back(&self, stream: sys::CUstream) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event lives as long as `self`, and the driver keeps what the stream waits for; the stream is as the caller says.
        let held = unsafe { result::stream::wait_event(stream, self.handle, flags) };
        held.map_err(|error| self.shared.failed("cuStreamWaitEvent", error))
    }

    /// A number that tells the device that it belongs to from others.
    pub(super) fn home(&self) -> usize {
        self.shared.home()
    }
}

impl Moment for Event {
    fn is_done(&self) -> Result<bool> {
        Event::is_done(self)
    }

    fn wait(&self) -> Result<()> {
        Event::wait(self)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let gone = self.shared.bind().and_then(|_bound| {
            // SAFETY: the handle is ours and destroyed once; the driver keeps what is still recorded.
            unsafe { result::event::destroy(self.handle) }.map_err(|error| self.shared.failed("cuEventDestroy", error))
        });
        if let Err(error) = gone {
            log::debug!("event=event-not-destroyed error={error}");
        }
    }
}
