//! A checkpoint whose regions are being added.
#![forbid(unsafe_code)]

use super::companions::{self, Companions};
use super::device::{DeviceCheckpointBuilder, Gpu, Way};
use super::error::{Error, Result};
use super::pending::Pending;
use super::routed::Routed;
use super::terms::Terms;
use crate::affinity::keeper::Whereabouts;
use crate::base::ids::text_hash;
use crate::base::log;
use crate::config::Method;
use crate::decomposition::{Decomposition, OnResize, Rule, ids};
use crate::device::{DeviceSpan, Stream};
use crate::format::ElementType;
use crate::live::LiveMemory;
use crate::region::{self, Element, RegionData, RegionError, SavedRegion};
use crate::tier::names::is_component;
#[cfg(any(feature = "mpi", test))]
use crate::transfer::HoldSpec;
use crate::transfer::checkpoint::{CaptureSpec, OnDevice};
use crate::transfer::history::{Caches, History, index_name};
use crate::transfer::offload::Offload;
use crate::transfer::{CaptureError, Engine, Held};
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

pub(super) fn check_name(name: &str) -> Result<()> {
    if is_component(name) { Ok(()) } else { Err(Error::Name { what: "checkpoint name", name: name.into() }) }
}

/// A checkpoint whose regions are being added. Nothing is copied before [`CheckpointBuilder::capture`].
pub struct CheckpointBuilder<'a> {
    pub(super) engine: Arc<Engine>,
    pub(super) operation: u64,
    pub(super) name: String,
    pub(super) version: u64,
    pub(super) regions: Vec<SavedRegion<'a>>,
    /// The hashes of the names of its regions.
    pub(super) names: HashSet<u64>,
    /// The regions for which the program has chosen a method.
    pub(super) wishes: Vec<(String, Method)>,
    /// How regions are spread over the ranks.
    pub(super) terms: Terms,
    pub(super) own_regions: bool,
    pub(super) held: Option<Held>,
    /// The number of bytes for which a stream leaves room, in addition to the regions that have been added.
    pub(super) room: u64,
    /// Why a stream has failed. The region that it was to write is then missing.
    pub(super) broken: Option<String>,
    /// The regions that the program itself writes as files.
    pub(super) routed: Option<Routed>,
    /// This rank's output files that are kept in agreement with the checkpoint; `None` if no rank has any.
    pub(super) companions: Option<Companions>,
    pub(super) begun: Duration,
    /// How long the application has waited while regions were held; `None` if none are held.
    pub(super) held_for: Option<Duration>,
    pub(super) done: bool,
}

impl<'a> CheckpointBuilder<'a> {
    /// Adds a slice as region `name`.
    ///
    /// # Errors
    /// [`Error::Region`]: the name is unusable or is already in use.
    pub fn save<T: Element>(&mut self, name: &str, data: &'a [T]) -> Result<()> {
        self.save_shaped(name, data, &[data.len() as u64])
    }

    /// Adds a slice with the extents of its dimensions, slowest first.
    ///
    /// # Errors
    /// [`Error::Region`]: the name is unusable or is already in use, or the shape does not fit the slice.
    pub fn save_shaped<T: Element>(&mut self, name: &str, data: &'a [T], shape: &[u64]) -> Result<()> {
        let saved = region::array(name, data, shape)?;
        self.add(saved)
    }

    /// Adds live host memory. The program may write to it as soon as the capture has returned, although the memory has not been copied by
    /// then. A separate thread copies it after the capture. A thread that writes to a page before that page has been copied waits until it
    /// has. Live memory pays off if the program writes to little of it soon after the capture. If the program waits for more than 15 % of
    /// the blocks of a region, the next eight captures copy that region at once.
    ///
    /// A capture also copies live memory at once in these cases: the kernel does not let this process watch its writes
    /// (`offload.host_writes`), which is reported once; the memory has less than 1 MiB; the checkpoint has device regions that are not
    /// marked; or there is no room in node memory.
    ///
    /// A restart treats the region like any other array. Only one capture with live memory is open at a time: the next one waits for the
    /// copy.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, advance: impl Fn(&mut [f64])) -> bivouac::Result<()> {
    /// let mut u = vec![0.0f64; 1 << 27];
    /// // SAFETY: `u` is not freed before the session is settled, and only `advance` writes to it.
    /// let memory = unsafe { bivouac::LiveMemory::new(u.as_mut_ptr(), u.len()) };
    /// for step in 0..1000 {
    ///     if session.should_checkpoint()? {
    ///         let mut ckpt = session.begin_checkpoint("heat", step)?;
    ///         ckpt.save_live::<f64>("u", &memory)?;
    ///         ckpt.capture()?;
    ///     }
    ///     advance(&mut u);
    /// }
    /// session.settle();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Region`]: the name is unusable or is already in use, or the memory ends inside an element.
    ///
    /// Source: ICS'19, section 4, whose memory zones are pages here.
    pub fn save_live<T: Element>(&mut self, name: &str, memory: &LiveMemory) -> Result<()> {
        let saved = region::live_array::<T>(name, memory, None)?;
        self.add(saved)
    }

    /// Adds live host memory with the extents of its dimensions, slowest first. Otherwise the same as [`CheckpointBuilder::save_live`].
    ///
    /// # Errors
    /// The errors of [`CheckpointBuilder::save_live`], and [`Error::Region`] if the shape does not fit the memory.
    pub fn save_live_shaped<T: Element>(&mut self, name: &str, memory: &LiveMemory, shape: &[u64]) -> Result<()> {
        let saved = region::live_array::<T>(name, memory, Some(shape))?;
        self.add(saved)
    }

    /// Adds a small value, which is encoded in this call.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn value<T: serde::Serialize>(&mut self, name: &str, value: &T) -> Result<()> {
        let saved = region::value(name, value)?;
        self.add(saved)
    }

    /// Adds this rank's part of an array that was decomposed with [`Session::decompose`](crate::Session::decompose). `memory` holds the
    /// rank's box, including the ghost cells that the decomposition defines. Ghost cells are not saved. The region can be loaded on any
    /// other decomposition of an array of the same shape, on any number of ranks ([`Attempt::load_on`](crate::Attempt::load_on)). A rank
    /// that owns nothing passes an empty slice.
    ///
    /// # Collective
    /// Local. All ranks save the region, on the same decomposition.
    ///
    /// # Errors
    /// [`Error::Region`]: the name is unusable or is already in use; the memory does not have the length of the box with its ghost cells;
    /// this rank owns several boxes (use [`CheckpointBuilder::save_boxes_on`] for these); or the decomposition belongs to another rank.
    pub fn save_on<T: Element>(&mut self, name: &str, on: &Decomposition, memory: &'a [T]) -> Result<()> {
        match on.boxes() {
            0 if memory.is_empty() => self.save_boxes_on::<T>(name, on, &[]),
            _ => self.save_boxes_on(name, on, &[memory]),
        }
    }

    /// Adds an array of which this rank owns any number of boxes. `memory` has one slice for each box, in the order in which the boxes were
    /// described. Otherwise the same as [`CheckpointBuilder::save_on`].
    ///
    /// # Collective
    /// Local.
    ///
    /// # Errors
    /// See [`CheckpointBuilder::save_on`].
    pub fn save_boxes_on<T: Element>(&mut self, name: &str, on: &Decomposition, memory: &[&'a [T]]) -> Result<()> {
        let saved = region::decomposed(name, on, memory, self.engine.identity().place())?;
        self.add_on(saved, on)
    }

    /// Adds an array on a decomposition, with elements of a type that is known only at run time.
    #[doc(hidden)]
    pub fn save_typed_on(
        &mut self,
        name: &str,
        on: &Decomposition,
        element: ElementType,
        memory: &[&'a [u8]],
    ) -> Result<()> {
        let saved = region::typed_decomposed(name, on, element, memory, self.engine.identity().place())?;
        self.add_on(saved, on)
    }

    /// Adds an array in device memory on a decomposition, with elements of a type that is known only at run time.
    #[doc(hidden)]
    pub fn save_spans_on(
        &mut self,
        name: &str,
        on: &Decomposition,
        element: ElementType,
        memory: &[&'a DeviceSpan],
    ) -> Result<()> {
        let saved = region::device_decomposed(name, on, element, memory, self.engine.identity().place())?;
        self.add_on(saved, on)
    }

    pub(super) fn add_on(&mut self, saved: SavedRegion<'a>, on: &Decomposition) -> Result<()> {
        let place = self.regions.len();
        self.add(saved)?;
        self.terms.on(place, on);
        Ok(())
    }

    /// Adds a small value that is the same on all ranks, such as a step or a time. Its encoded form may have at most 1 MiB. After a restart
    /// on any number of ranks, all ranks read the value back with [`Attempt::shared`](crate::Attempt::shared). If a rank's value differs
    /// from those of the other ranks, no checkpoint is taken, and the verdict names the rank.
    ///
    /// # Collective
    /// Local. All ranks save it.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn shared<T: serde::Serialize>(&mut self, name: &str, value: &T) -> Result<()> {
        let saved = region::shared(name, value)?;
        let RegionData::Host(bytes) = &saved.data else { return self.add(saved) };
        let (place, bytes) = (self.regions.len(), bytes.clone());
        self.add(saved)?;
        self.terms.shared(place, name, &bytes);
        Ok(())
    }

    /// Adds a small value of this rank, for example the state of its random number generator. `on_resize` says what happens to the value
    /// when the checkpoint is restored on a different number of ranks. On the same number of ranks, each rank reads its own value back with
    /// [`Attempt::value`](crate::Attempt::value).
    ///
    /// With [`OnResize::Refuse`], the checkpoint can be restored only on the same number of ranks, as with a plain
    /// [`CheckpointBuilder::value`]. The encoded form of a value that other ranks may ask for may have at most 1 MiB.
    ///
    /// # Collective
    /// Local. All ranks save it, with the same rule.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn per_rank<T: serde::Serialize>(&mut self, name: &str, value: &T, on_resize: OnResize) -> Result<()> {
        let saved = match on_resize {
            OnResize::Ask => region::shared(name, value)?,
            OnResize::Refuse | OnResize::Drop => region::value(name, value)?,
        };
        let place = self.regions.len();
        self.add(saved)?;
        self.terms.rule(place, Rule::PerRank(on_resize));
        Ok(())
    }

    /// Adds the versions that a history has now, on whichever tiers they are. Each field of each version becomes a region
    /// `<history>/<version>/<field>`, and a value `<history>/versions` lists the versions. The versions are read when the checkpoint is
    /// captured, and the history keeps them unchanged. [`Attempt::load_history`](crate::Attempt::load_history) loads them. Versions that
    /// have been consumed are not included, nor are versions whose append returned early
    /// ([`Return::Enqueued`](crate::transfer::history::Return::Enqueued)) and then failed.
    ///
    /// On all ranks, the history must have the same name and the same versions with the same fields; lengths may differ. No version may be
    /// consumed between this call and the capture.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, history: &bivouac::History, step: u64) -> bivouac::Result<()> {
    /// let mut ckpt = session.begin_checkpoint("adjoint", step)?;
    /// ckpt.save_history(history)?;
    /// ckpt.value("step", &step)?;
    /// ckpt.capture()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For enqueued copies into the GPU cache. Later, [`CheckpointBuilder::capture`] blocks for the transfers from GPU memory, host memory
    /// and the file that holds versions of the history.
    ///
    /// # Errors
    /// [`Error::Region`]: a name is unusable or is already in use, or a field ends inside an element. [`Error::History`]: the device has
    /// failed, or another thread's append of a version has not ended after `timeouts.room`. After an error, the checkpoint cannot be used:
    /// drop it. If a version turns out to be damaged on all tiers, or to have been consumed, the capture fails ([`Error::Capture`]), and
    /// all ranks are told.
    pub fn save_history(&mut self, history: &'a History) -> Result<()> {
        let (index, kept) = history.kept()?;
        for field in kept {
            self.add(region::kept_array(&field.region_name(), field.element(), field)?)?;
        }
        self.value(&index_name(history.name()), &index)
    }

    /// Adds a history whose fields are parts of arrays. `on` gives the name of each field and the decomposition on which it lies. The
    /// versions can be loaded on any number of ranks, and on other decompositions
    /// ([`Attempt::load_history_on`](crate::Attempt::load_history_on)). A field holds the elements of the rank's boxes, one box after the
    /// other and without ghost cells, or the elements in the rank's list of numbers.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, history: &bivouac::History, grid: &bivouac::Decomposition, step: u64) -> bivouac::Result<()> {
    /// let mut ckpt = session.begin_checkpoint("adjoint", step)?;
    /// ckpt.save_history_on(history, &[("pressure", grid), ("velocity", grid)])?;
    /// ckpt.shared("step", &step)?;
    /// ckpt.capture()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local. All ranks have the same versions, and name the same fields.
    ///
    /// # Blocking
    /// See [`CheckpointBuilder::save_history`].
    ///
    /// # Errors
    /// See [`CheckpointBuilder::save_history`]. [`Error::Region`] also if a field is not named, if it does not have as many
    /// elements as this rank owns, or if the list of versions takes more than 1 MiB.
    pub fn save_history_on(&mut self, history: &'a History, on: &[(&str, &Decomposition)]) -> Result<()> {
        let (index, kept) = history.kept()?;
        for field in kept {
            let wrong = |what: String| {
                let (history, field) = (history.name().to_owned(), field.name().to_owned());
                RegionError::HistoryField { history, field, what }
            };
            let of = on.iter().find(|(name, _)| *name == field.name());
            let (_, on) = of.ok_or_else(|| wrong("no decomposition was given for it".into()))?;
            let (name, element) = (field.region_name(), field.element());
            region::check_place(&name, on, self.engine.identity().place())?;
            let elements = region::ReadBlocks::bytes(&field) / element.bytes().max(1);
            if elements != on.elements() {
                let own = on.elements();
                return Err(wrong(format!("it has {elements} elements, but this rank owns {own} of the array")).into());
            }
            let saved = region::kept_array(&name, element, field)?;
            self.add_on(saved, on)?;
        }
        self.shared(&index_name(history.name()), &index)
    }

    /// Chooses, for a region of this checkpoint, the method by which files refer to earlier files, in place of the configured method
    /// (`reduction.method`, `reduction.regions`). If a region is named several times, the last call counts. The choice has an effect only
    /// if a method is configured for at least one region. If no method is configured, or if the region is not saved, the log says so. Ranks
    /// may choose different methods.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, counts: &[u32]) -> bivouac::Result<()> {
    /// use bivouac::config::Method;
    ///
    /// let mut ckpt = session.begin_checkpoint("graph", 7)?;
    /// ckpt.save("counts", counts)?;
    /// ckpt.reduce("counts", Method::Tree);
    /// let pending = ckpt.capture()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local.
    pub fn reduce(&mut self, region: &str, method: Method) {
        self.wishes.push((region.to_owned(), method));
    }

    /// Lets each rank save its own regions, whose names and types need not be the same on all ranks. All ranks make this call.
    #[doc(hidden)]
    pub fn let_regions_differ(&mut self) {
        self.own_regions = true;
    }

    /// Excludes the time that the application spends before the capture from the time that it waits for Bivouac.
    #[doc(hidden)]
    pub fn let_time_pass(&mut self) {
        self.held_for.get_or_insert_default();
    }

    /// Gives up the checkpoint before the capture. All ranks are told the reason `why`.
    #[doc(hidden)]
    pub fn refuse(mut self, why: &str) {
        self.done = true;
        self.engine.decline(self.operation, &self.name, self.version, why);
    }

    /// The region called `name`, if it is held.
    #[doc(hidden)]
    pub fn held(&self, name: &str) -> Option<&crate::format::Region> {
        let held = self.regions.iter().find(|saved| saved.region.name == name);
        held.filter(|saved| matches!(saved.data, RegionData::Held { .. })).map(|saved| &saved.region)
    }

    /// Adds a region that has already been described.
    #[doc(hidden)]
    pub fn add(&mut self, saved: SavedRegion<'a>) -> Result<()> {
        let is_new = self.names.insert(text_hash(&saved.region.name));
        // Two names may have the same hash.
        let is_file = || self.routed.as_ref().is_some_and(|routed| routed.has(&saved.region.name));
        if !is_new && (self.regions.iter().any(|known| known.region.name == saved.region.name) || is_file()) {
            return Err(RegionError::Twice { name: saved.region.name }.into());
        }
        self.regions.push(saved);
        Ok(())
    }

    /// Copies host regions now. The application may overwrite them at once, and call the capture later. Held regions come before the
    /// regions that are added without being held, which have at most `room` bytes. A region that is already held is copied again.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// See [`CheckpointBuilder::capture`].
    ///
    /// # Errors
    /// [`Error::Region`]: one of the regions has already been added, or is held with another type or shape; nothing has changed then.
    /// [`Error::Capture`]: no tier could take the regions; the checkpoint cannot be used then.
    #[cfg(any(feature = "mpi", test))]
    #[doc(hidden)]
    pub fn hold(&mut self, regions: Vec<SavedRegion<'_>>, room: u64) -> Result<()> {
        debug_assert!(
            self.regions.iter().all(|saved| matches!(saved.data, RegionData::Held { .. })),
            "held ones come first"
        );
        let started = self.engine.clock().now();
        let mut all: Vec<SavedRegion<'_>> = self.regions.clone();
        for mut saved in regions {
            if saved.copy_at_once() {
                self.engine.settle_live();
            }
            let known = all.iter_mut().find(|known| known.region.name == saved.region.name);
            match known {
                None => all.push(saved),
                Some(known) if known.region == saved.region && matches!(known.data, RegionData::Held { .. }) => {
                    *known = saved;
                }
                Some(_) => return Err(RegionError::Twice { name: saved.region.name }.into()),
            }
        }
        let spec = HoldSpec { operation: self.operation, name: &self.name, version: self.version, regions: &all, room };
        self.held = Some(self.engine.hold(&spec, self.held.take())?);
        let held = all.into_iter().map(|saved| {
            let data = match &saved.data {
                RegionData::Held { bytes, address } => RegionData::Held { bytes: *bytes, address: *address },
                RegionData::Host(Cow::Borrowed(bytes)) => {
                    RegionData::Held { bytes: bytes.len() as u64, address: bytes.as_ptr().addr() }
                }
                other => RegionData::Held { bytes: other.bytes(), address: 0 },
            };
            SavedRegion { region: saved.region, data }
        });
        self.regions = held.collect();
        self.names.extend(self.regions.iter().map(|saved| text_hash(&saved.region.name)));
        let took = self.engine.clock().now().saturating_sub(started);
        self.held_for = Some(self.held_for.unwrap_or_default() + took);
        Ok(())
    }

    /// Lets the checkpoint also take regions in device memory. These regions are complete once the work that is enqueued on `stream` at the
    /// capture has run. They are copied into the GPU cache of `caches`, which must belong to their device and come from
    /// [`Session::caches`](crate::Session::caches).
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, device: std::sync::Arc<dyn bivouac::device::Device>,
    /// #     stream: &dyn bivouac::device::Stream, t: &bivouac::device::DeviceSpan, step: u64) -> bivouac::Result<()> {
    /// let caches = session.caches(device)?; // once, at the start
    /// let mut ckpt = session.begin_checkpoint("heat", step)?.with_device(&caches, stream);
    /// ckpt.save_device::<f64>("temperature", t)?;
    /// ckpt.value("step", &step)?;
    /// let pending = ckpt.capture()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local. Ranks without regions in device memory do not call it.
    pub fn with_device(self, caches: &'a Caches, stream: &'a dyn Stream) -> DeviceCheckpointBuilder<'a> {
        DeviceCheckpointBuilder::new(self, Gpu { way: Way::Copied(caches), stream })
    }

    /// Lets the checkpoint take regions in device memory if the program declares what it writes. Regions for which the GPU cache has no
    /// room are *marked* at the capture, and are sent from where they are while the program continues ([`Offload`]). With
    /// `offload.mode = "always"`, all regions are marked. Otherwise the same as [`CheckpointBuilder::with_device`].
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, caches: &bivouac::Caches,
    /// #     stream: &dyn bivouac::device::Stream, t: &bivouac::device::DeviceSpan, step: u64) -> bivouac::Result<()> {
    /// let offload = session.offload(caches)?; // once, at the start
    /// let mut ckpt = session.begin_checkpoint("heat", step)?.with_offload(&offload, stream);
    /// ckpt.save_device::<f64>("temperature", t)?;
    /// ckpt.value("step", &step)?;
    /// let pending = ckpt.capture()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local.
    ///
    /// Source: ICS'19, section 4.1.
    pub fn with_offload(self, offload: &'a Offload, stream: &'a dyn Stream) -> DeviceCheckpointBuilder<'a> {
        DeviceCheckpointBuilder::new(self, Gpu { way: Way::Marked(offload), stream })
    }

    /// Copies all regions. When this returns, the application may overwrite them. The checkpoint has been committed at a level only once
    /// the [`Pending`] says so.
    ///
    /// # Collective
    /// All ranks; the call does not wait for the other ranks.
    ///
    /// # Blocking
    /// For the copy. If the memory tier is full, also for a flush that makes room, for at most `timeouts.room`. If the shard fits into no
    /// slot, for the write to the next tier.
    ///
    /// # Errors
    /// [`Error::Region`] if nothing was added. [`Error::Capture`] if no tier of this rank could take the shard, or if a version of a
    /// history could not be read; the other ranks are told in their verdict.
    pub fn capture(self) -> Result<Pending> {
        self.take(None)
    }

    pub(super) fn take(mut self, device: Option<OnDevice<'_>>) -> Result<Pending> {
        self.done = true;
        if let Err(why) = self.add_routed() {
            self.broken.get_or_insert(why);
        }
        let companions =
            companions::saved(self.companions.as_ref()).map_err(|why| self.broken.get_or_insert(why).clone());
        if self.regions.is_empty() && self.broken.is_none() {
            let error = RegionError::None { name: self.name.clone(), version: self.version };
            self.engine.decline(self.operation, &self.name, self.version, &error.to_string());
            return Err(error.into());
        }
        if let Some(why) = self.broken.take() {
            self.engine.decline(self.operation, &self.name, self.version, &why);
            let (rank, name, version) = (self.engine.identity().rank, self.name.clone(), self.version);
            return Err(CaptureError::NoTier { rank, name, version, causes: vec![why] }.into());
        }
        for (region, _) in self.wishes.iter().filter(|(region, _)| !self.names.contains(&text_hash(region))) {
            log::warn!(
                "event=reduction-of-nothing checkpoint={:?} region={region:?}: the checkpoint has no such region",
                self.name
            );
        }
        self.engine.reduce(self.operation, std::mem::take(&mut self.wishes));
        let called = self.engine.clock().now();
        self.engine.reporter().beat();
        let agreed = self.terms.agreed();
        let of_application = self.regions.len();
        let bound = self.engine.reporter().tells().then(|| self.terms.bound(&self.regions));
        if let Some(record) = self.terms.record() {
            self.regions.push(region::reserved(region::DECOMPOSITION, record));
            for (place, list) in self.terms.lists().enumerate() {
                self.regions.push(region::reserved_shared(&ids::region_name(place), list.packed().clone()));
            }
        }
        self.regions.extend(companions.ok().flatten());
        if let Some(keeper) = self.engine.affinity() {
            let address = device.as_ref().map_or_else(String::new, |on| on.caches.device_address());
            let regions = self.regions[..of_application].iter().filter_map(|saved| {
                let at = match &saved.data {
                    RegionData::Host(Cow::Borrowed(bytes)) => Whereabouts::Host(bytes.as_ptr().addr(), bytes.len()),
                    RegionData::Held { bytes, address } if *address != 0 => {
                        Whereabouts::Host(*address, *bytes as usize)
                    }
                    RegionData::Live(memory) => Whereabouts::Host(memory.range().start, memory.bytes() as usize),
                    RegionData::Device(_) | RegionData::DeviceRows(_) => Whereabouts::Device(&address),
                    RegionData::Kept(kept) => {
                        let memory = kept.memory()?;
                        Whereabouts::Host(memory.as_ptr().addr(), memory.len())
                    }
                    RegionData::Host(Cow::Owned(_)) | RegionData::Held { .. } => return None,
                };
                Some((saved.region.name.as_str(), at))
            });
            let record = region::reserved(region::AFFINITY, keeper.record(regions));
            self.regions.push(record);
        }
        let spec = CaptureSpec {
            operation: self.operation,
            name: self.name.clone(),
            version: self.version,
            regions: std::mem::take(&mut self.regions),
            held: self.held.take(),
            own_regions: self.own_regions,
            agreed,
            bound,
            device,
            // The application computes between the copy of the held regions and this call.
            begun: self.held_for.map_or(self.begun, |took| called.saturating_sub(took)),
        };
        let captured = self.engine.capture(spec);
        self.engine.settle();
        let progress = captured?;
        Ok(Pending { engine: self.engine.clone(), progress, name: self.name.clone(), version: self.version })
    }
}

impl Drop for CheckpointBuilder<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.engine.decline(self.operation, &self.name, self.version, "gave the checkpoint up before capture");
        }
        if let Some(routed) = &self.routed {
            routed.remove();
        }
    }
}
