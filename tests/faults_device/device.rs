//! A device that fails when it is told to: the host twin behind switches.
//!
//! A fault is set for a kind of call: it passes a number of calls and then hits a number of calls. A call that is hit returns an error and
//! does nothing, or does its work with one wrong byte, or loses the whole device. Calls of the application's streams (high priority) are
//! distinguished from those of the caches' threads (low priority).

use bivouac_core::base::Digest;
use bivouac_core::device::chunks::{ChunkTable, Place as ChunkPlace, TableSize};
use bivouac_core::device::host::HostDevice;
use bivouac_core::device::{
    Carrier, Copied, Device, DeviceError, DeviceInfo, DeviceSpan, Gate, HostRange, Moment, Pinned, Priority,
    Reservation, RowCopy, Run, Sending, Staging, Stream, upload_and_digest,
};
use bivouac_core::reduction::{Found, Question};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};

type Result<T> = std::result::Result<T, DeviceError>;

/// A kind of call; for copies, with the priority of the stream that makes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Reserve,
    Map,
    Pin,
    /// The allocation of a chunk table; `Look` is a look-up in that table.
    Table,
    Look,
    CopyBlocks(Priority),
    Download(Priority),
    Upload(Priority),
}

/// What happens to a call that is hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The call returns [`DeviceError::OutOfMemory`].
    OutOfMemory,
    /// The call returns [`DeviceError::Failed`].
    Fail,
    /// Enqueued work fails when it is waited for. For [`Call::CopyBlocks`].
    FailLater,
    /// Enqueued work does not end before [`FaultyDevice::release_at_end`]. For [`Call::CopyBlocks`].
    Hold,
    /// The byte in the middle of the first transfer is wrong. For downloads and uploads.
    Damage,
    /// The device is lost in this call, so all later calls fail as well.
    Lose,
}

/// `pass` calls pass, and then `hits` calls are hit.
#[derive(Debug)]
struct Rule {
    call: Call,
    fault: Fault,
    pass: u64,
    hits: u64,
}

#[derive(Debug, Default)]
struct Switches {
    rules: Mutex<Vec<Rule>>,
    /// The number of calls that were hit.
    hit: Mutex<u64>,
    held: Arc<Held>,
    ranges: Mutex<Vec<Weak<dyn Reservation>>>,
}

/// Whether held work may end now.
#[derive(Debug, Default)]
pub struct Held {
    is_released: Mutex<bool>,
    released: Condvar,
    waits: AtomicU64,
}

impl Held {
    fn is_released(&self) -> bool {
        *self.is_released.lock().expect("no panic")
    }

    fn wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let guard = self.is_released.lock().expect("no panic");
        drop(self.released.wait_while(guard, |is_released| !*is_released).expect("no panic"));
    }
}

/// Lets held work end when it is dropped.
pub struct Release<'a>(&'a Held);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        *self.0.is_released.lock().expect("no panic") = true;
        self.0.released.notify_all();
    }
}

/// The host twin behind switches.
#[derive(Debug)]
pub struct FaultyDevice {
    twin: Arc<HostDevice>,
    switches: Arc<Switches>,
}

pub const ALWAYS: u64 = u64::MAX;

impl FaultyDevice {
    pub fn around(twin: Arc<HostDevice>) -> Arc<FaultyDevice> {
        Arc::new(FaultyDevice { twin, switches: Arc::default() })
    }

    /// From now on, `pass` calls of this kind pass and the next `hits` are hit.
    pub fn set(&self, call: Call, fault: Fault, pass: u64, hits: u64) {
        self.switches.rules.lock().expect("no panic").push(Rule { call, fault, pass, hits });
    }

    /// Lets held work end, for good, when the returned object is dropped, even in a test that fails.
    pub fn release_at_end(&self) -> Release<'_> {
        Release(&self.switches.held)
    }

    /// Has anybody begun to wait for held work?
    pub fn is_waited_for(&self) -> bool {
        self.switches.held.waits.load(Ordering::Relaxed) > 0
    }

    /// The number of calls that were hit until now.
    pub fn hits(&self) -> u64 {
        *self.switches.hit.lock().expect("no panic")
    }

    /// Flips a bit in every place of the mapped reservations that holds these bytes, as a bad memory cell does.
    /// Returns the number of places.
    pub fn damage(&self, bytes: &[u8]) -> usize {
        let stream = self.twin.stream(Priority::High).expect("a stream");
        let ranges: Vec<_> = self.switches.ranges.lock().expect("no panic").iter().filter_map(Weak::upgrade).collect();
        let mut places = 0;
        for range in ranges {
            let span = range.span(0, range.bytes()).expect("all of it is mapped");
            let mut memory = vec![0; span.bytes() as usize];
            stream.download(&mut [(span.clone(), &mut memory)], None).expect("the twin works");
            for at in super::places_of(bytes, &memory) {
                let byte = span.part(at as u64, 1).expect("inside");
                stream.upload(&[(&[bytes[0] ^ 1], byte)], None).expect("the twin works");
                places += 1;
            }
        }
        places
    }
}

impl Switches {
    /// The fault that hits this call, if any.
    fn fault(&self, call: Call) -> Option<Fault> {
        let mut fault = None;
        for rule in self.rules.lock().expect("no panic").iter_mut().filter(|rule| rule.call == call) {
            if rule.pass > 0 {
                rule.pass -= 1;
            } else if rule.hits > 0 && fault.is_none() {
                rule.hits -= 1;
                fault = Some(rule.fault);
            }
        }
        *self.hit.lock().expect("no panic") += u64::from(fault.is_some());
        fault
    }

    /// Returns the error of a call that fails at once, or otherwise the fault that is still to be applied.
    fn check(&self, twin: &HostDevice, call: Call) -> Result<Option<Fault>> {
        let fault = self.fault(call);
        match fault {
            Some(Fault::OutOfMemory) => Err(DeviceError::OutOfMemory { what: "a test", bytes: 1 }),
            Some(Fault::Fail) => Err(failed(call)),
            Some(Fault::Lose) => {
                twin.lose("a test pulled the plug");
                Ok(None)
            }
            Some(Fault::FailLater | Fault::Hold | Fault::Damage) | None => Ok(fault),
        }
    }
}

fn failed(call: Call) -> DeviceError {
    let call = match call {
        Call::Reserve => "reserve",
        Call::Map => "map",
        Call::Pin => "pin",
        Call::Table => "chunk_table",
        Call::Look => "look",
        Call::CopyBlocks(_) => "copy_blocks",
        Call::Download(_) => "download",
        Call::Upload(_) => "upload",
    };
    DeviceError::Failed { ordinal: 0, call, reason: "a test said so".into() }
}

impl Device for FaultyDevice {
    fn info(&self) -> &DeviceInfo {
        self.twin.info()
    }

    fn free_memory(&self) -> Result<u64> {
        self.twin.free_memory()
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceSpan> {
        self.twin.allocate(bytes)
    }

    fn reserve(&self, bytes: u64) -> Result<Arc<dyn Reservation>> {
        self.switches.check(&self.twin, Call::Reserve)?;
        let inner = self.twin.reserve(bytes)?;
        self.switches.ranges.lock().expect("no panic").push(Arc::downgrade(&inner));
        Ok(Arc::new(FaultyRange { inner, twin: self.twin.clone(), switches: self.switches.clone() }))
    }

    fn stream(&self, priority: Priority) -> Result<Arc<dyn Stream>> {
        let inner = self.twin.stream(priority)?;
        Ok(Arc::new(FaultyStream { inner, priority, twin: self.twin.clone(), switches: self.switches.clone() }))
    }

    fn chunk_table(&self, size: TableSize) -> Result<Box<dyn ChunkTable>> {
        self.switches.check(&self.twin, Call::Table)?;
        let inner = self.twin.chunk_table(size)?;
        Ok(Box::new(FaultyTable { inner, twin: self.twin.clone(), switches: self.switches.clone() }))
    }

    fn make_ready(&self, bytes: u64) -> Result<()> {
        self.twin.make_ready(bytes)
    }

    fn pin(&self, memory: &HostRange) -> Result<Box<dyn Pinned>> {
        self.switches.check(&self.twin, Call::Pin)?;
        self.twin.pin(memory)
    }
}

#[derive(Debug)]
struct FaultyTable {
    inner: Box<dyn ChunkTable>,
    twin: Arc<HostDevice>,
    switches: Arc<Switches>,
}

impl ChunkTable for FaultyTable {
    fn size(&self) -> &TableSize {
        self.inner.size()
    }

    fn look(&mut self, asked: &Question, places: &[ChunkPlace]) -> Result<Option<Found>> {
        self.switches.check(&self.twin, Call::Look)?;
        self.inner.look(asked, places)
    }
}

#[derive(Debug)]
struct FaultyRange {
    inner: Arc<dyn Reservation>,
    twin: Arc<HostDevice>,
    switches: Arc<Switches>,
}

impl Reservation for FaultyRange {
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn map(&self, offset: u64, bytes: u64) -> Result<()> {
        self.switches.check(&self.twin, Call::Map)?;
        self.inner.map(offset, bytes)
    }

    fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        self.inner.unmap(offset, bytes)
    }

    fn span(&self, offset: u64, bytes: u64) -> Result<DeviceSpan> {
        self.inner.span(offset, bytes)
    }
}

#[derive(Debug)]
struct FaultyStream {
    inner: Arc<dyn Stream>,
    priority: Priority,
    twin: Arc<HostDevice>,
    switches: Arc<Switches>,
}

impl FaultyStream {
    fn check(&self, call: Call) -> Result<Option<Fault>> {
        self.switches.check(&self.twin, call)
    }
}

/// Makes the byte in the middle wrong.
fn damage(bytes: &mut [u8]) {
    if let Some(byte) = bytes.get_mut(bytes.len() / 2) {
        *byte ^= 1;
    }
}

impl Stream for FaultyStream {
    fn copy_blocks(&self, runs: Vec<Run>, block_bytes: u64) -> Result<Box<dyn Copied>> {
        let call = Call::CopyBlocks(self.priority);
        let fault = self.check(call)?;
        let copied = self.inner.copy_blocks(runs, block_bytes)?;
        Ok(match fault {
            Some(Fault::FailLater) => Box::new(FailedCopy(copied, failed(call))),
            Some(Fault::Hold) => Box::new(HeldCopy(copied, self.switches.held.clone())),
            _ => copied,
        })
    }

    fn copy(&self, from: &DeviceSpan, to: &DeviceSpan) -> Result<()> {
        self.inner.copy(from, to)
    }

    fn pack(&self, copies: &[RowCopy], to: &DeviceSpan) -> Result<()> {
        self.inner.pack(copies, to)
    }

    fn staging(&self, bytes: u64) -> Result<Box<dyn Staging + '_>> {
        self.inner.staging(bytes)
    }

    fn download(&self, copies: &mut [(DeviceSpan, &mut [u8])], gate: Option<Gate<'_>>) -> Result<()> {
        let fault = self.check(Call::Download(self.priority))?;
        self.inner.download(copies, gate)?;
        if let (Some(Fault::Damage), Some((_, bytes))) = (fault, copies.first_mut()) {
            damage(bytes);
        }
        Ok(())
    }

    fn upload(&self, copies: &[(&[u8], DeviceSpan)], gate: Option<Gate<'_>>) -> Result<()> {
        let fault = self.check(Call::Upload(self.priority))?;
        let (Some(Fault::Damage), Some(((first, span), rest))) = (fault, copies.split_first()) else {
            return self.inner.upload(copies, gate);
        };
        let mut wrong = first.to_vec();
        damage(&mut wrong);
        let mut copies = vec![(&wrong[..], span.clone())];
        copies.extend_from_slice(rest);
        self.inner.upload(&copies, gate)
    }

    fn upload_blocks(&self, copies: &[(&[u8], DeviceSpan)], block_bytes: u64) -> Result<Vec<Digest>> {
        upload_and_digest(self, copies, block_bytes)
    }

    fn send(&self, sendings: Vec<Sending>, block_bytes: u64, carrier: Carrier) -> Result<Box<dyn Copied>> {
        self.inner.send(sendings, block_bytes, carrier)
    }

    fn moment(&self) -> Result<Arc<dyn Moment>> {
        self.inner.moment()
    }

    fn wait_for(&self, moment: &dyn Moment) -> Result<()> {
        self.inner.wait_for(moment)
    }

    fn is_recording(&self) -> Result<bool> {
        self.inner.is_recording()
    }

    fn finish(&self) -> Result<()> {
        self.inner.finish()
    }
}

/// Work after something that takes long.
struct HeldCopy(Box<dyn Copied>, Arc<Held>);

impl Copied for HeldCopy {
    fn is_done(&self) -> Result<bool> {
        if self.1.is_released() { self.0.is_done() } else { Ok(false) }
    }

    fn wait(&self) -> Result<()> {
        self.1.wait();
        self.0.wait()
    }

    fn digests(&self) -> Result<Vec<Digest>> {
        self.1.wait();
        self.0.digests()
    }

    fn read_digests(&self, first: usize, into: &mut [Digest]) -> Result<()> {
        self.1.wait();
        self.0.read_digests(first, into)
    }

    fn seconds(&self) -> Result<f64> {
        self.1.wait();
        self.0.seconds()
    }
}

/// Work that failed; the error is reported when the work is waited for.
struct FailedCopy(Box<dyn Copied>, DeviceError);

impl Copied for FailedCopy {
    fn is_done(&self) -> Result<bool> {
        self.0.is_done().and_then(|done| if done { Err(self.1.clone()) } else { Ok(false) })
    }

    fn wait(&self) -> Result<()> {
        self.0.wait().and(Err(self.1.clone()))
    }

    fn digests(&self) -> Result<Vec<Digest>> {
        self.0.digests().and(Err(self.1.clone()))
    }

    fn read_digests(&self, first: usize, into: &mut [Digest]) -> Result<()> {
        self.0.read_digests(first, into).and(Err(self.1.clone()))
    }

    fn seconds(&self) -> Result<f64> {
        self.0.seconds().and(Err(self.1.clone()))
    }
}
