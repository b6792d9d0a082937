//! Loading regions that lie on a decomposition, and values that ranks share.

use super::super::access::ShardAccess;
use super::super::homes::home;
use super::super::load_error::LoadError;
use super::super::opener::Opener;
use super::super::outline::OutlinedDecomposition;
use super::super::remade::{Numbered, Plans, Readers, Remaking, Target, Together, load_own};
use super::Attempt;
use super::Shards;
use crate::base::{CheckpointKey, Rank};
use crate::coordination::{Ballot, Culprit, Outcome, Payload};
use crate::decomposition::{Decomposition, Layout, OnResize, Record, Rule};
use crate::device::{DeviceSpan, Stream};
use crate::format::{ElementType, Region};
use crate::region::{self, Element, RegionError, Unpacked};
use crate::transfer::Engine;
use crate::transfer::posting::{Handled, all_at_once};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The parts of an attempt that a load by all ranks together uses.
pub(super) struct Hands<'r> {
    /// Opens shards.
    pub opener: &'r Opener,
    /// The shards whose home this rank is.
    pub homes: &'r mut [ShardAccess],
    /// Which rank reads which shard.
    pub readers: &'r mut Readers,
    /// Plans of earlier loads.
    pub plans: &'r mut Plans,
}

impl Attempt {
    /// Loads a region into this rank's part of an array. The region may have been saved on `on`, or on any other decomposition of an array
    /// of the same shape. `memory` holds the rank's box, including the ghost cells that `on` defines. Ghost cells are left as they are.
    ///
    /// # Collective
    /// Local if the region was saved on `on`. Otherwise all ranks: they must load the same regions in the same order.
    ///
    /// # Blocking
    /// On the tier that holds the copy; if the call is collective, on the tiers that hold the shards, and until all ranks have called.
    ///
    /// # Errors
    /// See [`Attempt::load`]. [`LoadError::Region`]: the memory does not have the length of the box with its ghost cells, or
    /// this rank owns several boxes (use [`Attempt::load_boxes_on`] for these). [`LoadError::Decomposition`]: the region was saved without
    /// a decomposition, on an array of another shape, on boxes although `on` has lists of numbers, or on lists of numbers although `on` has
    /// boxes. [`LoadError::Others`], on all ranks alike, if they load together.
    pub fn load_on<T: Element>(&mut self, name: &str, on: &Decomposition, memory: &mut [T]) -> Result<(), LoadError> {
        match on.boxes() {
            0 if memory.is_empty() => self.load_boxes_on::<T>(name, on, &mut []),
            _ => self.load_boxes_on(name, on, &mut [memory]),
        }
    }

    /// Loads an array of which this rank owns any number of boxes. `memory` has a slice for each box, in the order in which the boxes were
    /// described. Otherwise the same as [`Attempt::load_on`].
    ///
    /// # Collective
    /// See [`Attempt::load_on`].
    ///
    /// # Blocking
    /// See [`Attempt::load_on`].
    ///
    /// # Errors
    /// See [`Attempt::load_on`].
    pub fn load_boxes_on<T: Element>(
        &mut self,
        name: &str,
        on: &Decomposition,
        memory: &mut [&mut [T]],
    ) -> Result<(), LoadError> {
        let bytes: Vec<&mut [u8]> = memory.iter_mut().map(|memory| bytemuck::cast_slice_mut(memory)).collect();
        self.load_typed_on(name, on, T::TYPE, bytes)
    }

    /// Loads an array whose box is in device memory, with elements of type `T`, whether they were saved from host or device memory.
    /// Otherwise the same as [`Attempt::load_on`].
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, grid: &bivouac::Decomposition, t: &bivouac::device::DeviceSpan,
    /// #     stream: &dyn bivouac::device::Stream) -> bivouac::Result<()> {
    /// session.begin_restore("heat").run(|r| Ok(r.load_device_on::<f64>("temperature", grid, t, stream)?))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// See [`Attempt::load_on`]; some ranks may load into host memory, and others into device memory.
    ///
    /// # Blocking
    /// As long as [`Attempt::load_on`], and for the work that is enqueued on the stream and for the transfer. When this returns, the
    /// elements are complete for work on any stream. They pass through at most 72 MiB of pinned memory.
    ///
    /// # Errors
    /// The errors of [`Attempt::load_on`]; [`LoadError::Region`] also if the memory ends inside an element. [`LoadError::Device`] if the
    /// device fails. Another copy or an older checkpoint would not help then. If all ranks load together, all ranks are told
    /// ([`LoadError::Others`]).
    pub fn load_device_on<T: Element>(
        &mut self,
        name: &str,
        on: &Decomposition,
        memory: &DeviceSpan,
        stream: &dyn Stream,
    ) -> Result<(), LoadError> {
        match on.boxes() {
            0 if memory.bytes() == 0 => self.load_device_boxes_on::<T>(name, on, &[], stream),
            _ => self.load_device_boxes_on::<T>(name, on, std::slice::from_ref(memory), stream),
        }
    }

    /// Loads an array of which this rank owns any number of boxes. `memory` has the device memory of each box, in the order in which the
    /// boxes were described. Otherwise the same as [`Attempt::load_device_on`].
    ///
    /// # Collective
    /// See [`Attempt::load_device_on`].
    ///
    /// # Blocking
    /// See [`Attempt::load_device_on`].
    ///
    /// # Errors
    /// See [`Attempt::load_device_on`].
    pub fn load_device_boxes_on<T: Element>(
        &mut self,
        name: &str,
        on: &Decomposition,
        memory: &[DeviceSpan],
        stream: &dyn Stream,
    ) -> Result<(), LoadError> {
        self.load_spans_on(name, on, T::TYPE, memory.to_vec(), stream)
    }

    /// Loads an array as [`Attempt::load_device_boxes_on`] does, with elements of a type that is known only at run time.
    #[doc(hidden)]
    pub fn load_spans_on(
        &mut self,
        name: &str,
        on: &Decomposition,
        element: ElementType,
        memory: Vec<DeviceSpan>,
        stream: &dyn Stream,
    ) -> Result<(), LoadError> {
        let lent: Vec<&DeviceSpan> = memory.iter().collect();
        let fits = region::check_device_memory(name, on, element, &lent);
        let (own, size) = (on.own(), element.bytes());
        let target = |memory| Target::on_device(own, memory, stream, size);
        let Some(memory) = self.load_elsewhere(name, on, element, (fits, memory), target)? else { return Ok(()) };
        self.check_whole(name, on, element)?;
        if let [memory] = &memory[..]
            && let Some(piece) = own.strides(0, size).one_piece()
        {
            let unfit = |source| LoadError::Region {
                rank: self.rank,
                source: RegionError::Device { name: name.into(), source },
            };
            let span = memory.part(piece.start as u64, piece.len() as u64).map_err(unfit)?;
            return self.load_span(name, element, &span, stream);
        }
        let mut target = target(memory);
        load_own(self.own()?, name, on, &mut target)?;
        let (rank, key) = (self.rank, self.key);
        let what = || format!("region {name:?}");
        target.finish().map(|_| ()).map_err(|source| LoadError::Device { rank, key, what: what(), source })
    }

    /// Loads an array as [`Attempt::load_boxes_on`] does, with elements of a type that is known only at run time.
    #[doc(hidden)]
    pub fn load_typed_on(
        &mut self,
        name: &str,
        on: &Decomposition,
        element: ElementType,
        memory: Vec<&mut [u8]>,
    ) -> Result<(), LoadError> {
        let size = element.bytes();
        let elements = memory.iter().map(|memory| memory.len() / size.max(1) as usize);
        let fits = region::check_memory(name, on, elements);
        let target = |memory| Target::new(on.own(), memory, size);
        let Some(mut memory) = self.load_elsewhere(name, on, element, (fits, memory), target)? else { return Ok(()) };
        let region = self.check_whole(name, on, element)?;
        if let ([memory], Some(placement)) = (&mut memory[..], &self.placement) {
            placement.before_load(name, memory);
        }
        self.load_with(&region, |source, region| {
            let boxes = memory.iter_mut().enumerate();
            let boxes = boxes.map(|(number, memory)| (&mut **memory, on.own().strides(number, size)));
            Ok(source.read_scattered(region, Unpacked::new(boxes))?)
        })
    }

    /// Loads a region that lies on another decomposition, together with all ranks, into the target that `target` makes from the memory. If
    /// the region lies on this decomposition, returns the memory instead.
    fn load_elsewhere<'t, M>(
        &mut self,
        name: &str,
        on: &Decomposition,
        element: ElementType,
        (fits, memory): (Result<(), RegionError>, M),
        target: impl Fn(M) -> Target<'t>,
    ) -> Result<Option<M>, LoadError> {
        let (rank, size) = (self.rank, element.bytes());
        let fits = region::check_place(name, on, (rank, self.ranks)).and(fits);
        let fits = fits.map_err(|source| LoadError::Region { rank, source });
        let lies = self.lies_on(name, element)?;
        if lies.identity != on.identity() {
            if lies.shape != on.shape() {
                let found = format!("is part of an array of shape {:?}, not {:?}", lies.shape, on.shape());
                return Err(LoadError::Decomposition { rank, key: self.key, region: name.into(), found });
            }
            let is_listed = matches!(on.layout(), Layout::Listed(_));
            if lies.is_listed != is_listed {
                let found = match is_listed {
                    true => "was saved on boxes: load it on boxes, not on lists of numbers",
                    false => "was saved on lists of numbers: load it on lists, not on boxes",
                };
                return Err(LoadError::Decomposition { rank, key: self.key, region: name.into(), found: found.into() });
            }
            return self.remake(name, on, size, &lies, fits.map(|()| target(memory))).map(|()| None);
        }
        fits?;
        Ok(Some(memory))
    }

    /// The region of this rank's own shard, if it has as many elements as the rank owns.
    fn check_whole(&mut self, name: &str, on: &Decomposition, element: ElementType) -> Result<Region, LoadError> {
        let region = self.find(name)?;
        self.check_array(&region, element, on.elements() * element.bytes())?;
        Ok(region)
    }

    /// Loads a region that lies on another decomposition, together with all ranks.
    fn remake(
        &mut self,
        name: &str,
        on: &Decomposition,
        size: u64,
        from: &OutlinedDecomposition,
        target: Result<Target<'_>, LoadError>,
    ) -> Result<(), LoadError> {
        let key = self.key;
        let Hands { opener, homes, readers, plans } = self.hands(name)?;
        let together = Together { engine: opener.engine(), key, region: name };
        match on.layout() {
            Layout::Boxes { cells, .. } => {
                let remaking = Remaking { together, opener, size, from, own: on.own(), is_proved: on.is_proved() };
                remaking.load((on.identity(), cells), (homes, readers), plans, target)
            }
            Layout::Listed(list) => {
                let numbered = Numbered { together, opener, size, from, list, on: on.identity() };
                numbered.load((homes, readers), &mut plans.lists, target)
            }
        }
    }

    /// The parts of this attempt that a load by all ranks together uses.
    pub(super) fn hands(&mut self, region: &str) -> Result<Hands<'_>, LoadError> {
        let Attempt { opener, shards, readers, plans, .. } = self;
        let opener = opener.as_ref().ok_or_else(|| alone(self.rank, self.key, region))?;
        let homes = match shards {
            Shards::Own(own) => std::slice::from_mut(&mut **own),
            Shards::Resized(resized) => &mut resized.homes[..],
        };
        Ok(Hands { opener, homes, readers, plans })
    }

    /// The decomposition on which a region of this element type lies.
    fn lies_on(&mut self, name: &str, element: ElementType) -> Result<OutlinedDecomposition, LoadError> {
        let (rank, key) = (self.rank, self.key);
        let (found, lies) = match &self.shards {
            Shards::Resized(resized) => {
                let outline = &resized.outline;
                let present = || outline.regions.iter().map(|region| region.name.clone()).collect();
                let missing = || LoadError::Missing { rank, key, region: name.into(), present: present() };
                let found = outline.region(name).ok_or_else(missing)?;
                (found.element, outline.of_region(found).cloned())
            }
            Shards::Own(_) => {
                let record = self.record()?;
                let source = self.source("the region table")?;
                let head = source.head();
                let place = head.meta.regions.iter().position(|region| region.name == name);
                let place = place.ok_or_else(|| self.missing(head, name))?;
                (head.meta.regions[place].element, OutlinedDecomposition::of_region(&record, place))
            }
        };
        let plain = || {
            "was saved without a decomposition: load it with `load` or `value`, or with `load_rows` if it is a column of rows"
                .to_owned()
        };
        let lies = lies.ok_or_else(|| LoadError::Decomposition { rank, key, region: name.into(), found: plain() })?;
        if found != element {
            let (found, expected) = (found.to_string(), element.to_string());
            return Err(LoadError::Mismatch { rank, key, region: name.into(), found, expected });
        }
        Ok(lies)
    }

    /// Loads a small value that all ranks share ([`CheckpointBuilder::shared`](crate::CheckpointBuilder::shared)).
    ///
    /// # Collective
    /// All ranks, if a different number of ranks took the checkpoint: the root reads it. Otherwise local.
    ///
    /// # Blocking
    /// On the tier that holds the copy; if the call is collective, until all ranks have called.
    ///
    /// # Errors
    /// The errors of [`Attempt::value`], and [`LoadError::Decomposition`] if the value was not saved as a shared value.
    pub fn shared<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, LoadError> {
        let (rank, key) = (self.rank, self.key);
        let rule = self.rule(name)?;
        if rule != Some(Rule::Shared) {
            let found = "was not saved as a value that all ranks share: load it with `value` or `load`".to_owned();
            return Err(LoadError::Decomposition { rank, key, region: name.into(), found });
        }
        let Shards::Resized(resized) = &mut self.shards else { return self.value(name) };
        // The root is the home of the first shard.
        let read = resized.homes.first_mut().filter(|_| rank == Rank::ROOT).map(|access| access.shared_bytes(name));
        let (bytes, failure) = match read {
            Some(Ok(bytes)) => (bytes, None),
            Some(Err(error)) => (Vec::new(), Some(error)),
            None => (Vec::new(), None),
        };
        let engine = self.engine(name)?;
        let together = Together { engine: &engine, key: self.key, region: name };
        let ballot = together.failed(together.ballot("shared", Payload::None), failure.as_ref());
        let verdict = together.vote(ballot, move |_| (Outcome::Agreed, bytes))?;
        region::decode_value(name, &verdict.decision).map_err(|source| LoadError::Value { rank, source })
    }

    /// Loads the values that some old ranks saved with [`CheckpointBuilder::per_rank`](crate::CheckpointBuilder::per_rank) and
    /// [`OnResize::Ask`], in the order of these ranks. Each rank may ask for the values of any of the [`Attempt::saved_ranks`] old ranks.
    ///
    /// # Collective
    /// All ranks; a rank that wants no value asks for an empty range.
    ///
    /// # Blocking
    /// On the tiers that hold the shards, and until all ranks have called.
    ///
    /// # Errors
    /// [`LoadError::Decomposition`] if the value was not saved with that rule; [`LoadError::Others`], on all ranks alike;
    /// [`LoadError::Value`] if the values are of another type.
    pub fn of_ranks<T: DeserializeOwned>(&mut self, name: &str, ranks: Range<u32>) -> Result<Vec<T>, LoadError> {
        let (rank, key, of) = (self.rank, self.key, self.saved_ranks());
        if self.rule(name)? != Some(Rule::PerRank(OnResize::Ask)) {
            let found = "was not saved as a value that ranks may ask for: save it with `per_rank` and `OnResize::Ask`";
            let found = found.to_owned();
            return Err(LoadError::Decomposition { rank, key, region: name.into(), found });
        }
        let wanted = ranks.start.min(of)..ranks.end.min(of).max(ranks.start.min(of));
        let mut got: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        let asked = wanted.clone().map(|shard| (shard, 0)).collect();
        let answer = |access: &mut ShardAccess, _| access.shared_bytes(name);
        self.ask_homes((name, "of ranks"), asked, answer, |shard, bytes| {
            got.insert(shard, bytes.to_vec());
            Some(0)
        })?;
        let decoded = wanted.map(|shard| {
            let bytes = got.get(&shard).map_or(&[][..], |bytes| bytes);
            region::decode_value(name, bytes).map_err(|source| LoadError::Value { rank, source })
        });
        decoded.collect()
    }

    /// Asks the homes of old shards about a region. Each request has a number to start from, and `answer` makes the reply to it.
    /// `on_answer` says how much of a shard is left to ask for; `None`: the reply cannot be understood. Returns how much is left on all
    /// ranks together.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`LoadError::Others`], on all ranks alike.
    pub(super) fn ask_homes(
        &mut self,
        (name, step): (&str, &str),
        asked: Vec<(u32, u64)>,
        answer: impl Fn(&mut ShardAccess, u64) -> Result<Vec<u8>, LoadError>,
        mut on_answer: impl FnMut(u32, &[u8]) -> Option<u64>,
    ) -> Result<u64, LoadError> {
        let (rank, of, ranks) = (self.rank, self.saved_ranks(), self.ranks);
        let engine = self.engine(name)?;
        let together = Together { engine: &engine, key: self.key, region: name };
        let ask = |(shard, from): (u32, u64)| {
            (home(Rank(shard), of, ranks), [&shard.to_le_bytes()[..], &from.to_le_bytes()].concat())
        };
        let mut next = all_at_once(asked.into_iter().map(ask).collect());
        let shards = match &mut self.shards {
            Shards::Own(own) => std::slice::from_mut(&mut **own),
            Shards::Resized(resized) => &mut resized.homes[..],
        };
        let mut on_post = |_: Rank, bytes: &[u8]| {
            let (shard, from) = bytes.split_first_chunk().ok_or("it is truncated")?;
            let shard = Rank(u32::from_le_bytes(*shard));
            let from = u64::from_le_bytes(from.try_into().map_err(|_| "it is truncated")?);
            let access = shards.iter_mut().find(|access| access.shard() == shard);
            let access = access.ok_or_else(|| format!("this rank is not the home of shard {shard}"))?;
            let (status, bytes) = match answer(access, from) {
                Ok(bytes) => (0, bytes),
                Err(error) => (1 + u8::from(error.is_damage()), error.to_string().into_bytes()),
            };
            let answer = [&shard.0.to_le_bytes()[..], &[status], &bytes[..]].concat();
            Ok(Handled { answer, onward: Vec::new() })
        };
        let vote = |answers: Vec<Vec<u8>>| {
            let (mut ballot, mut left) = (together.ballot(step, Payload::None), 0u64);
            for answer in answers {
                let Some((&[a, b, c, d, status], bytes)) = answer.split_first_chunk() else { continue };
                let shard = u32::from_le_bytes([a, b, c, d]);
                match (status, on_answer(shard, if status == 0 { bytes } else { &[] })) {
                    (0, Some(more)) => left = left.saturating_add(more),
                    (0, None) => {
                        let why = format!("the answer from the home of rank {shard} cannot be understood");
                        ballot = ballot.failed(rank, why, false);
                    }
                    (status, _) => ballot = ballot.failed(rank, String::from_utf8_lossy(bytes), status == 2),
                }
            }
            ballot.with_sums(vec![(0, left)])
        };
        let decide = |ballot: &Ballot| Outcome::agreed("left", &ballot.sums);
        let verdict = together.exchange(&mut next, &mut on_post, vote, decide)?;
        let sums: Vec<(u64, u64)> = together.decode(&verdict)?;
        Ok(sums.first().map_or(0, |(_, left)| *left))
    }

    /// How a region is spread over the ranks.
    pub(super) fn rule(&mut self, name: &str) -> Result<Option<Rule>, LoadError> {
        if let Shards::Resized(resized) = &self.shards {
            let present = || resized.outline.regions.iter().map(|region| region.name.clone()).collect();
            let missing =
                || LoadError::Missing { rank: self.rank, key: self.key, region: name.into(), present: present() };
            return Ok(resized.outline.region(name).ok_or_else(missing)?.rule);
        }
        let record = self.record()?;
        let source = self.source("the region table")?;
        let head = source.head();
        let place = head.meta.regions.iter().position(|region| region.name == name);
        let place = place.ok_or_else(|| self.missing(head, name))?;
        Ok(record.rules.get(&place).copied())
    }

    /// The shard's record of its decompositions.
    pub(super) fn record(&mut self) -> Result<Arc<Record>, LoadError> {
        self.source("the region table")?;
        self.own()?.shared_record()
    }

    /// The engine through which all ranks load together.
    fn engine(&self, region: &str) -> Result<Arc<Engine>, LoadError> {
        let opener = self.opener.as_ref().ok_or_else(|| alone(self.rank, self.key, region))?;
        Ok(opener.engine().clone())
    }
}

/// The error of a rank that has no other ranks with which to load a region.
fn alone(rank: Rank, key: CheckpointKey, region: &str) -> LoadError {
    let culprits = vec![Culprit::of(rank, "it can only be loaded by all ranks together, in a session")];
    LoadError::Others { key, region: region.into(), culprits }
}
