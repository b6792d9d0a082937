//! The twin's streams. Their work is done in order: by a thread for each stream, or by whoever waits, in which case a
//! seed chooses the order among streams.
#![forbid(unsafe_code)]

use super::super::{
    Carrier, Copied, DeviceError, DeviceSpan, Gate, Moment, Result, RowCopy, Run, Sending, Staging, Stream, TargetPart,
    check_copies, check_runs, check_sendings, upload_and_digest,
};
use super::{Shared, lock};
use crate::base::Digest;
use crate::base::digest::digest_bytes;
use crate::base::log;
use crate::base::rng::Rng;
use crate::base::sync::{Condition, Lock, Order};
use crate::base::threads::spawn;
use crate::base::units::MIB;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Copies go through a buffer of this size, so that no two boxes are locked at once; other streams may
/// continue after each buffer.
const CHUNK_BYTES: u64 = 256 << 10;

/// A piece of work: does a part of it, and says whether that was the last one.
type Work = Box<dyn FnMut() -> bool + Send>;

/// What is in the queue of a stream.
enum Task {
    Work(Work),
    /// Work after it waits for another stream.
    Behind(Arc<End>),
}

/// All streams of a device whose streams have no threads of their own.
pub(super) struct Schedule {
    rng: Rng,
    queues: BTreeMap<usize, Queue>,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    /// The first of them is being worked on.
    is_busy: bool,
}

impl Schedule {
    pub(super) fn new(seed: u64) -> Schedule {
        Schedule { rng: Rng::new(seed), queues: BTreeMap::new() }
    }

    /// A part of work that may be done now, and the stream that it belongs to.
    fn next(&mut self) -> Option<(usize, Work)> {
        let mut ready = Vec::new();
        for (number, queue) in &mut self.queues {
            let is_over = |task: &Task| matches!(task, Task::Behind(end) if lock(&end.outcome).is_some());
            while !queue.is_busy && queue.tasks.front().is_some_and(is_over) {
                queue.tasks.pop_front();
            }
            if !queue.is_busy && matches!(queue.tasks.front(), Some(Task::Work(_))) {
                ready.push(*number);
            }
        }
        let number = *ready.get(self.rng.below(ready.len() as u64) as usize)?;
        let queue = self.queues.get_mut(&number)?;
        let Some(Task::Work(work)) = queue.tasks.pop_front() else { return None };
        queue.is_busy = true;
        Some((number, work))
    }
}

impl Shared {
    /// Does a part of the work of some stream; false if there is none that may be done now.
    pub(super) fn advance(&self) -> bool {
        let Some(schedule) = &self.schedule else { return false };
        let Some((number, mut work)) = lock(schedule).next() else { return false };
        let is_done = work();
        let mut schedule = lock(schedule);
        let queue = schedule.queues.entry(number).or_default();
        queue.is_busy = false;
        if !is_done {
            queue.tasks.push_front(Task::Work(work));
        }
        true
    }

    /// If streams have no threads, works until the end has been reached. Streams that wait for each other lose the device.
    fn advance_to(&self, end: &End) {
        while self.schedule.is_some() && lock(&end.outcome).is_none() {
            if self.advance() {
                continue;
            }
            let is_busy = |schedule: &Lock<Schedule>| lock(schedule).queues.values().any(|queue| queue.is_busy);
            match self.schedule.as_ref().is_some_and(is_busy) {
                true => std::thread::yield_now(),
                false => {
                    self.lose("its streams wait for each other".into());
                    let error = self.check().map(|()| Vec::new());
                    *lock(&end.outcome) = Some((error, 0.0));
                }
            }
        }
    }
}

/// A stream of the twin.
pub struct HostStream {
    shared: Arc<Shared>,
    /// Sends work to its thread, if it has one.
    sender: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
    number: usize,
}

/// The end of a piece of work.
pub(super) struct End {
    shared: Arc<Shared>,
    outcome: Lock<Option<(Result<Vec<Digest>>, f64)>>,
    changed: Condition,
}

impl HostStream {
    pub(super) fn new(shared: &Arc<Shared>) -> Result<HostStream> {
        shared.check()?;
        let number = shared.streams.fetch_add(1, Ordering::Relaxed);
        let (mut sender, mut thread) = (None, None);
        if shared.schedule.is_none() {
            let (tasks, receiver) = channel::<Task>();
            let body = move || {
                for task in receiver {
                    match task {
                        Task::Work(mut work) => while !work() {},
                        Task::Behind(end) => end.with(|_, _| ()),
                    }
                }
            };
            let spawned = spawn(format!("bvk-twin-{number}"), body).map_err(|error| DeviceError::Failed {
                ordinal: 0,
                call: "starting a thread for a stream",
                reason: error.to_string(),
            });
            (sender, thread) = (Some(tasks), Some(spawned?));
        }
        Ok(HostStream { shared: shared.clone(), sender, thread, number })
    }

    fn push(&self, task: Task) -> Result<()> {
        if let Some(schedule) = &self.shared.schedule {
            lock(schedule).queues.entry(self.number).or_default().tasks.push_back(task);
            return Ok(());
        }
        // The thread lives as long as the stream.
        match self.sender.as_ref().is_none_or(|sender| sender.send(task).is_err()) {
            true => Err(DeviceError::Lost { ordinal: 0, reason: "the stream's thread is gone".into() }),
            false => Ok(()),
        }
    }

    /// Enqueues work in parts; the last part gives its outcome.
    fn enqueue(&self, part: impl FnMut(&Shared) -> Result<Option<Vec<Digest>>> + Send + 'static) -> Result<Arc<End>> {
        self.shared.check()?;
        let end = Arc::new(End { shared: self.shared.clone(), outcome: Lock::default(), changed: Condition::new() });
        let (there, mut begun, mut part) = (end.clone(), None, Some(part));
        self.push(Task::Work(Box::new(move || {
            let begun = *begun.get_or_insert_with(Instant::now);
            let outcome = match (there.shared.check(), &mut part) {
                (Ok(()), Some(part)) => part(&there.shared),
                (Ok(()), None) => Ok(Some(Vec::new())),
                (Err(error), _) => Err(error),
            };
            let outcome = match outcome {
                Ok(None) => return false,
                Ok(Some(digests)) => Ok(digests),
                Err(error) => Err(error),
            };
            // Whatever it held is given back before anybody is told that it has ended.
            part = None;
            *lock(&there.outcome) = Some((outcome, begun.elapsed().as_secs_f64()));
            there.changed.notify_all();
            true
        })))?;
        Ok(end)
    }

    /// Enqueues a kernel of the application. `kernel` gets the bytes of the spans, as with
    /// [`HostDevice::compute`](super::HostDevice::compute).
    ///
    /// # Errors
    /// [`DeviceError::Lost`]. If spans are wrong, the device is lost when it reaches the kernel.
    pub fn launch(&self, spans: Vec<DeviceSpan>, kernel: impl FnOnce(&mut [&mut [u8]]) + Send + 'static) -> Result<()> {
        let mut kernel = Some(kernel);
        let part = move |shared: &Shared| {
            let spans: Vec<&DeviceSpan> = spans.iter().collect();
            let Some(kernel) = kernel.take() else { return Ok(Some(Vec::new())) };
            // A kernel that fails loses the device, as on a GPU: whoever waits for the stream gets the error.
            let run = || shared.compute(&spans, kernel);
            let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            let lost = |_| DeviceError::Failed { ordinal: 0, call: "a host kernel", reason: "it panicked".into() };
            run.map_err(lost).flatten().inspect_err(|error| shared.lose(error.to_string()))?;
            Ok(Some(Vec::new()))
        };
        self.enqueue(part).map(|_| ())
    }

    fn copy_parts(&self, mut copy: BlockCopy) -> Result<Box<dyn Copied>> {
        let begun = Instant::now();
        let end = self.enqueue(move |shared| {
            if !copy.part(shared)? {
                return Ok(None);
            }
            if let Some(rate) = shared.model.copy_bytes_per_s.filter(|_| !copy.is_sent) {
                let bytes: u64 = copy.moves.iter().map(|moved| moved.from.bytes()).sum();
                std::thread::sleep(Duration::from_secs_f64(bytes as f64 / rate).saturating_sub(begun.elapsed()));
            }
            Ok(Some(mem::take(&mut copy.digests)))
        })?;
        Ok(Box::new(HostCopied(end)))
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            log::error!("event=twin-thread-panicked stream={}", self.number);
        }
        // What was enqueued is still done, as on a GPU.
        if self.shared.schedule.is_some() {
            _ = self.finish();
        }
    }
}

impl End {
    fn with<T>(&self, read: impl FnOnce(&Result<Vec<Digest>>, f64) -> T) -> T {
        self.shared.advance_to(self);
        let mut outcome = lock(&self.outcome);
        loop {
            match &*outcome {
                Some((result, seconds)) => return read(result, *seconds),
                None => outcome = self.changed.wait(outcome),
            }
        }
    }

    fn is_done(&self) -> Result<bool> {
        match &*lock(&self.outcome) {
            Some((outcome, _)) => outcome.clone().map(|_| true),
            None => Ok(false),
        }
    }
}

/// Where bytes go.
enum To {
    Nowhere,
    Device(DeviceSpan),
    /// To host memory, starting this many bytes into it.
    Host(TargetPart, u64),
}

/// A run, wherever it goes.
struct Move {
    from: DeviceSpan,
    to: To,
    first_block: u32,
    start: u64,
    region_bytes: u64,
}

impl From<Run> for Move {
    fn from(run: Run) -> Move {
        let Run { from, to, first_block, start, region_bytes } = run;
        Move { from, to: to.map_or(To::Nowhere, To::Device), first_block, start, region_bytes }
    }
}

/// Copies with digests, part by part.
struct BlockCopy {
    moves: Vec<Move>,
    block_bytes: u64,
    /// They cross the link.
    is_sent: bool,
    /// Which move is next, and how much of it is done.
    next: usize,
    at: u64,
    /// Blocks that have been read only in part: their bytes, and how many of these have been read.
    open: BTreeMap<u32, (Vec<u8>, usize)>,
    digests: Vec<Digest>,
}

impl BlockCopy {
    fn new(moves: Vec<Move>, block_bytes: u64, blocks: u32, is_sent: bool) -> BlockCopy {
        // A GPU leaves what was there before in the digests of blocks that no run covers.
        let digests = vec![Digest([0xdb; 16]); blocks as usize];
        BlockCopy { moves, block_bytes, is_sent, next: 0, at: 0, open: BTreeMap::new(), digests }
    }

    /// Copies the next part; true if it was the last.
    fn part(&mut self, shared: &Shared) -> Result<bool> {
        let Some(moved) = self.moves.get(self.next) else { return Ok(true) };
        let length = CHUNK_BYTES.min(moved.from.bytes() - self.at);
        let mut chunk = vec![0; length as usize];
        if matches!(moved.to, To::Host(..)) {
            shared.wait_for_link();
        }
        shared.read(&moved.from.part(self.at, length)?, &mut chunk)?;
        match &moved.to {
            To::Nowhere => {}
            To::Device(to) => shared.write(&to.part(self.at, length)?, &chunk)?,
            To::Host(to, at) => {
                to.write(at + self.at, &chunk);
                shared.spend_on_link(0, length);
            }
        }
        let (mut at, mut chunk) = (moved.start + self.at, &chunk[..]);
        while !chunk.is_empty() {
            let block = at / self.block_bytes;
            let begin = block * self.block_bytes;
            let length = self.block_bytes.min(moved.region_bytes - begin) as usize;
            let inside = (at - begin) as usize;
            let (new, rest) = chunk.split_at(chunk.len().min(length - inside));
            let index = moved.first_block + block as u32;
            let (bytes, count) = self.open.entry(index).or_insert_with(|| (vec![0; length], 0));
            bytes[inside..inside + new.len()].copy_from_slice(new);
            *count += new.len();
            if *count == length {
                self.digests[index as usize] = digest_bytes(bytes);
                self.open.remove(&index);
            }
            at += new.len() as u64;
            chunk = rest;
        }
        self.at += length;
        if self.at == moved.from.bytes() {
            (self.next, self.at) = (self.next + 1, 0);
        }
        Ok(self.next == self.moves.len())
    }
}

/// Transfers are cut into pieces of this size, as a GPU's are.
const PIECE_BYTES: u64 = 16 * MIB;

/// Asks the gate for each piece of a transfer.
fn pass(gate: &mut Option<Gate<'_>>, bytes: u64) {
    if let Some(gate) = gate {
        (0..bytes.div_ceil(PIECE_BYTES)).for_each(|index| gate(PIECE_BYTES.min(bytes - index * PIECE_BYTES)));
    }
}

fn check_lengths(device: &DeviceSpan, host: usize) -> Result<()> {
    if device.bytes() == host as u64 {
        return Ok(());
    }
    Err(DeviceError::Range { offset: 0, bytes: device.bytes(), reason: "source and target differ in length" })
}

impl Stream for HostStream {
    fn copy_blocks(&self, runs: Vec<Run>, block_bytes: u64) -> Result<Box<dyn Copied>> {
        let blocks = check_runs(&runs, block_bytes)?;
        self.shared.check_spans(runs.iter().flat_map(|run| std::iter::once(&run.from).chain(&run.to)))?;
        let moves = runs.into_iter().map(Move::from).collect();
        self.copy_parts(BlockCopy::new(moves, block_bytes, blocks, false))
    }

    fn copy(&self, from: &DeviceSpan, to: &DeviceSpan) -> Result<()> {
        if from.bytes() != to.bytes() {
            let reason = "source and target differ in length";
            return Err(DeviceError::Range { offset: 0, bytes: from.bytes(), reason });
        }
        self.shared.check_spans([from, to].into_iter())?;
        let (from, to, mut at) = (from.clone(), to.clone(), 0);
        let part = move |shared: &Shared| {
            let mut buffer = vec![0; CHUNK_BYTES.min(from.bytes() - at) as usize];
            shared.read(&from.part(at, buffer.len() as u64)?, &mut buffer)?;
            shared.write(&to.part(at, buffer.len() as u64)?, &buffer)?;
            at += buffer.len() as u64;
            Ok((at == from.bytes()).then(Vec::new))
        };
        self.enqueue(part).map(|_| ())
    }

    fn pack(&self, copies: &[RowCopy], to: &DeviceSpan) -> Result<()> {
        check_copies(copies, to.bytes())?;
        self.shared.check_spans(copies.iter().map(|copy| copy.rows.span()).chain([to]))?;
        let (copies, to, mut next) = (copies.to_vec(), to.clone(), 0);
        let part = move |shared: &Shared| {
            let Some(copy) = copies.get(next) else { return Ok(Some(Vec::new())) };
            next += 1;
            let mut packed = vec![0; copy.bytes as usize];
            gather(shared, copy, &mut packed)?;
            shared.write(&to.part(copy.packed, copy.bytes)?, &packed)?;
            Ok(None)
        };
        self.enqueue(part).map(|_| ())
    }

    fn staging(&self, bytes: u64) -> Result<Box<dyn Staging + '_>> {
        self.shared.check()?;
        let memory = Arc::new(Lock::at(Order::Outer, vec![0; bytes as usize]));
        Ok(Box::new(HostStaging { stream: self, memory, lent: vec![0; bytes as usize], under_way: None }))
    }

    fn download(&self, copies: &mut [(DeviceSpan, &mut [u8])], mut gate: Option<Gate<'_>>) -> Result<()> {
        copies.iter().try_for_each(|(device, host)| check_lengths(device, host.len()))?;
        self.shared.check_spans(copies.iter().map(|(device, _)| device))?;
        self.finish()?;
        for (device, host) in copies {
            pass(&mut gate, device.bytes());
            self.shared.wait_for_link();
            self.shared.read(device, host)?;
            self.shared.spend_on_link(0, device.bytes());
        }
        // A device that was lost meanwhile has not delivered.
        self.shared.check()
    }

    fn upload(&self, copies: &[(&[u8], DeviceSpan)], mut gate: Option<Gate<'_>>) -> Result<()> {
        copies.iter().try_for_each(|(host, device)| check_lengths(device, host.len()))?;
        self.shared.check_spans(copies.iter().map(|(_, device)| device))?;
        self.finish()?;
        for (host, device) in copies {
            pass(&mut gate, device.bytes());
            self.shared.wait_for_link();
            self.shared.write(device, host)?;
            self.shared.spend_on_link(1, device.bytes());
        }
        self.shared.check()
    }

    fn upload_blocks(&self, copies: &[(&[u8], DeviceSpan)], block_bytes: u64) -> Result<Vec<Digest>> {
        upload_and_digest(self, copies, block_bytes)
    }

    fn send(&self, sendings: Vec<Sending>, block_bytes: u64, carrier: Carrier) -> Result<Box<dyn Copied>> {
        let blocks = check_sendings(&sendings, block_bytes)?;
        self.shared.check_spans(sendings.iter().map(|sending| &sending.from))?;
        let mut first_block = 0;
        let mut moves = Vec::new();
        for Sending { from, to, parts } in sendings {
            for part in parts {
                let (from, to) = (from.part(part.from, part.bytes)?, To::Host(to.clone(), part.to));
                moves.push(Move { from, to, first_block, start: 0, region_bytes: part.bytes });
                first_block += part.bytes.div_ceil(block_bytes) as u32;
            }
        }
        if carrier == Carrier::Engine {
            let again = |moved: &Move| Move { from: moved.from.clone(), to: To::Nowhere, ..*moved };
            moves.extend(moves.iter().map(again).collect::<Vec<_>>());
        }
        self.copy_parts(BlockCopy::new(moves, block_bytes, blocks, true))
    }

    fn moment(&self) -> Result<Arc<dyn Moment>> {
        Ok(Arc::new(HostMoment(self.enqueue(|_| Ok(Some(Vec::new())))?)))
    }

    fn wait_for(&self, moment: &dyn Moment) -> Result<()> {
        let moment = (moment as &dyn Any).downcast_ref::<HostMoment>();
        match moment.filter(|HostMoment(end)| Arc::ptr_eq(&end.shared, &self.shared)) {
            Some(HostMoment(end)) => self.push(Task::Behind(end.clone())),
            None => {
                let reason = "the moment comes from another device".to_owned();
                Err(DeviceError::Foreign { address: 0, ordinal: 0, reason })
            }
        }
    }

    fn is_recording(&self) -> Result<bool> {
        self.shared.check().map(|()| false)
    }

    fn finish(&self) -> Result<()> {
        self.enqueue(|_| Ok(Some(Vec::new())))?.with(|outcome, _| outcome.clone().map(|_| ()))?;
        self.shared.check()
    }
}

impl fmt::Debug for HostStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostStream({})", self.number)
    }
}

/// Reads some bytes of rows.
fn gather(shared: &Shared, copy: &RowCopy, packed: &mut [u8]) -> Result<()> {
    let mut done = 0;
    copy.rows.each(copy.at, copy.bytes, |place, count| {
        let part = &mut packed[done..done + count as usize];
        done += count as usize;
        shared.read(&copy.rows.span().part(place, count)?, part)
    })
}

/// What the twin has in place of pinned memory. The device has its own image of it, so whoever looks at it too early
/// sees what was there before.
struct HostStaging<'s> {
    stream: &'s HostStream,
    /// As the device sees it.
    memory: Arc<Lock<Vec<u8>>>,
    lent: Vec<u8>,
    /// The last of what was enqueued, and whether it brings bytes here.
    under_way: Option<(Arc<End>, bool)>,
}

impl HostStaging<'_> {
    fn enqueue(&mut self, copies: &[RowCopy], is_down: bool) -> Result<()> {
        check_copies(copies, self.lent.len() as u64)?;
        let shared = &self.stream.shared;
        shared.check_spans(copies.iter().map(|copy| copy.rows.span()))?;
        if !is_down {
            lock(&self.memory).copy_from_slice(&self.lent);
        }
        let (copies, memory, mut next) = (copies.to_vec(), self.memory.clone(), 0);
        let end = self.stream.enqueue(move |shared| {
            let Some(copy) = copies.get(next) else { return Ok(Some(Vec::new())) };
            next += 1;
            shared.wait_for_link();
            let mut memory = lock(&memory);
            let packed = &mut memory[copy.packed as usize..][..copy.bytes as usize];
            if is_down {
                gather(shared, copy, packed)?;
            } else {
                let mut done = 0;
                copy.rows.each(copy.at, copy.bytes, |place, count| {
                    let part = &packed[done..done + count as usize];
                    done += count as usize;
                    shared.write(&copy.rows.span().part(place, count)?, part)
                })?;
            }
            drop(memory);
            shared.spend_on_link(usize::from(!is_down), copy.bytes);
            Ok(None)
        })?;
        let brings = is_down || self.under_way.as_ref().is_some_and(|(_, brings)| *brings);
        self.under_way = Some((end, brings));
        Ok(())
    }
}

impl Staging for HostStaging<'_> {
    fn memory(&mut self) -> Result<&mut [u8]> {
        if let Some((end, brings)) = self.under_way.take() {
            end.with(|outcome, _| outcome.clone())?;
            self.stream.shared.check()?;
            if brings {
                self.lent.copy_from_slice(&lock(&self.memory));
            }
        }
        Ok(&mut self.lent)
    }

    fn scatter(&mut self, copies: &[RowCopy]) -> Result<()> {
        self.enqueue(copies, false)
    }

    fn gather(&mut self, copies: &[RowCopy]) -> Result<()> {
        self.enqueue(copies, true)
    }
}

impl Drop for HostStaging<'_> {
    fn drop(&mut self) {
        if let Some((end, _)) = self.under_way.take() {
            end.with(|_, _| ());
        }
    }
}

struct HostMoment(Arc<End>);

impl Moment for HostMoment {
    fn is_done(&self) -> Result<bool> {
        self.0.is_done()
    }

    fn wait(&self) -> Result<()> {
        self.0.with(|outcome, _| outcome.clone().map(|_| ()))
    }
}

struct HostCopied(Arc<End>);

impl Copied for HostCopied {
    fn is_done(&self) -> Result<bool> {
        self.0.is_done()
    }

    fn wait(&self) -> Result<()> {
        self.0.with(|outcome, _| outcome.clone().map(|_| ()))
    }

    fn digests(&self) -> Result<Vec<Digest>> {
        self.0.with(|outcome, _| outcome.clone())
    }

    fn read_digests(&self, first: usize, into: &mut [Digest]) -> Result<()> {
        self.0.with(|outcome, _| {
            let digests = outcome.as_ref().map_err(Clone::clone)?;
            into.copy_from_slice(&digests[first..first + into.len()]);
            Ok(())
        })
    }

    fn seconds(&self) -> Result<f64> {
        self.0.with(|outcome, seconds| outcome.clone().map(|_| seconds))
    }
}

impl Drop for HostCopied {
    fn drop(&mut self) {
        self.0.with(|_, _| ());
    }
}
