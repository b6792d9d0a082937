//! A device whose link is made slower: after each transfer, a kernel holds the link for the rest of the time that a slow link would take.
//!
//! It uses `bivouac-core`, because a program cannot define its own device. The transfers of all streams run one after the other, as over a
//! shared link. Their rate is emulated, but not other users of the link.
#![forbid(unsafe_code)]

use bivouac_core::base::Digest;
use bivouac_core::device::chunks::{ChunkTable, TableSize};
use bivouac_core::device::{
    Carrier, Copied, Device, DeviceError, DeviceInfo, DeviceSpan, Gate, HostRange, Moment, Pinned, Priority,
    Reservation, RowCopy, Run, Sending, Staging, Stream,
};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, DeviceError>;

/// Approximate bytes per second of the device's own link: this much of the time is over when a transfer has ended.
const OWN_LINK: f64 = 52e9;

/// A stream, and a function that enqueues there a kernel that runs for a given time.
pub struct Hold {
    /// The stream.
    pub stream: Arc<dyn Stream>,
    /// The kernel.
    #[allow(clippy::type_complexity)] // It is named here.
    pub launch: Box<dyn Fn(Duration) -> Result<()> + Send + Sync>,
}

/// The link, and the moment from which it is free.
struct Link {
    bytes_per_s: f64,
    hold: Hold,
    free: Mutex<Option<Arc<dyn Moment>>>,
}

impl Link {
    /// How long this many bytes hold the link, without the time that they take anyway.
    fn extra(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64((bytes as f64 / self.bytes_per_s - bytes as f64 / OWN_LINK).max(0.0))
    }
}

/// The device.
pub struct SlowDevice {
    device: Arc<dyn Device>,
    link: Arc<Link>,
}

impl SlowDevice {
    /// A device with a link of this many MiB per second.
    pub fn new(device: Arc<dyn Device>, mib_per_s: u32, hold: Hold) -> SlowDevice {
        let bytes_per_s = f64::from(mib_per_s) * f64::from(1 << 20);
        SlowDevice { device, link: Arc::new(Link { bytes_per_s, hold, free: Mutex::new(None) }) }
    }

    /// A stream of the device whose transfers are equally slow.
    pub fn slowed(&self, stream: Arc<dyn Stream>) -> Arc<dyn Stream> {
        Arc::new(SlowStream { stream, link: self.link.clone() })
    }
}

impl fmt::Debug for SlowDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlowDevice({:?})", self.device)
    }
}

impl Device for SlowDevice {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn free_memory(&self) -> Result<u64> {
        self.device.free_memory()
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceSpan> {
        self.device.allocate(bytes)
    }

    fn reserve(&self, bytes: u64) -> Result<Arc<dyn Reservation>> {
        self.device.reserve(bytes)
    }

    fn stream(&self, priority: Priority) -> Result<Arc<dyn Stream>> {
        Ok(self.slowed(self.device.stream(priority)?))
    }

    fn chunk_table(&self, size: TableSize) -> Result<Box<dyn ChunkTable>> {
        self.device.chunk_table(size)
    }

    fn make_ready(&self, bytes: u64) -> Result<()> {
        self.device.make_ready(bytes)
    }

    fn pin(&self, memory: &HostRange) -> Result<Box<dyn Pinned>> {
        self.device.pin(memory)
    }
}

/// A stream of the slow device.
struct SlowStream {
    stream: Arc<dyn Stream>,
    link: Arc<Link>,
}

impl SlowStream {
    /// A transfer that has ended when its call returns.
    fn ended<T>(&self, bytes: u64, transfer: impl FnOnce() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let outcome = transfer()?;
        let wanted = Duration::from_secs_f64(bytes as f64 / self.link.bytes_per_s);
        std::thread::sleep(wanted.saturating_sub(begun.elapsed()));
        Ok(outcome)
    }
}

impl fmt::Debug for SlowStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlowStream({:?})", self.stream)
    }
}

impl Stream for SlowStream {
    fn copy_blocks(&self, runs: Vec<Run>, block_bytes: u64) -> Result<Box<dyn Copied>> {
        self.stream.copy_blocks(runs, block_bytes)
    }

    fn copy(&self, from: &DeviceSpan, to: &DeviceSpan) -> Result<()> {
        self.stream.copy(from, to)
    }

    fn pack(&self, copies: &[RowCopy], to: &DeviceSpan) -> Result<()> {
        self.stream.pack(copies, to)
    }

    // No program that has such a stream loads boxes into device memory: nothing is slowed down here.
    fn staging(&self, bytes: u64) -> Result<Box<dyn Staging + '_>> {
        self.stream.staging(bytes)
    }

    fn download(&self, copies: &mut [(DeviceSpan, &mut [u8])], gate: Option<Gate<'_>>) -> Result<()> {
        self.ended(copies.iter().map(|(span, _)| span.bytes()).sum(), || self.stream.download(copies, gate))
    }

    fn upload(&self, copies: &[(&[u8], DeviceSpan)], gate: Option<Gate<'_>>) -> Result<()> {
        self.ended(copies.iter().map(|(_, span)| span.bytes()).sum(), || self.stream.upload(copies, gate))
    }

    fn upload_blocks(&self, copies: &[(&[u8], DeviceSpan)], block_bytes: u64) -> Result<Vec<Digest>> {
        let bytes = copies.iter().map(|(_, span)| span.bytes()).sum();
        self.ended(bytes, || self.stream.upload_blocks(copies, block_bytes))
    }

    fn send(&self, sendings: Vec<Sending>, block_bytes: u64, carrier: Carrier) -> Result<Box<dyn Copied>> {
        let bytes = sendings.iter().flat_map(|sending| &sending.parts).map(|part| part.bytes).sum();
        let Link { hold: Hold { stream, launch }, free, .. } = &*self.link;
        let mut free = free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(free) = &*free {
            self.stream.wait_for(&**free)?;
        }
        let copied = self.stream.send(sendings, block_bytes, carrier)?;
        stream.wait_for(&*self.stream.moment()?)?;
        launch(self.link.extra(bytes))?;
        let moment = stream.moment()?;
        // Holds back whatever follows on this stream, such as the event that reports the transfer's arrival.
        self.stream.wait_for(&*moment)?;
        *free = Some(moment);
        Ok(copied)
    }

    fn moment(&self) -> Result<Arc<dyn Moment>> {
        self.stream.moment()
    }

    fn wait_for(&self, moment: &dyn Moment) -> Result<()> {
        self.stream.wait_for(moment)
    }

    fn is_recording(&self) -> Result<bool> {
        self.stream.is_recording()
    }

    fn finish(&self) -> Result<()> {
        self.stream.finish()
    }
}
