//! The state that a program saves and loads, described once for both.
#![forbid(unsafe_code)]

use super::checkpoint::CheckpointBuilder;
use super::device::{DeviceCheckpointBuilder, Gpu};
use super::error::Result;
use super::pending::Pending;
use super::restart::{Restore, Restored};
use super::session::Session;
use crate::base::text::list;
use crate::decomposition::{Decomposition, OnResize};
use crate::device::DeviceSpan;
use crate::format::ElementType;
use crate::recovery::{Attempt, LoadError};
use crate::region::{Element, RegionError};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::HashSet;

/// The maximum number of regions that a warning names.
const NAMES_MAX: usize = 6;

/// A program's state, or a part of it. It describes its parts that are saved and loaded, each under a name.
///
/// `#[derive(bivouac::Checkpoint)]` writes the implementation for a structure of arrays and values; the derive macro of the same name
/// documents its attributes. [`Session::checkpoint`] saves the parts that are described, and [`Session::restore`] loads them.
///
/// ```no_run
/// # fn f(session: &bivouac::Session) -> bivouac::Result<()> {
/// use bivouac::{Checkpoint, Protected};
///
/// struct Heat {
///     step: u64,
///     temperature: Vec<f64>,
/// }
///
/// impl Checkpoint for Heat {
///     fn describe<'a>(&'a mut self, parts: &mut Protected<'a>) {
///         parts.protect("step", &mut self.step).protect("temperature", &mut self.temperature);
///     }
/// }
///
/// let mut heat = Heat { step: 0, temperature: vec![20.0; 1 << 20] };
/// session.restore("heat", &mut heat)?;
/// while heat.step < 1000 {
///     heat.step += 1; // … compute …
///     if session.should_checkpoint()? {
///         session.checkpoint("heat", heat.step, &mut heat)?;
///     }
/// }
/// # Ok(()) }
/// ```
pub trait Checkpoint {
    /// Adds each part under its name. Names and types must be the same on all ranks. Parts that lie on a decomposition or are shared must
    /// be added in the same order on all ranks.
    fn describe<'a>(&'a mut self, parts: &mut Protected<'a>);
}

/// The named parts of a program's state that [`Session::checkpoint`] saves and [`Session::restore`] loads.
///
/// A [`Checkpoint`] fills in a `Protected`. A program without a structure for its state makes a `Protected` for each call:
///
/// ```no_run
/// # fn f(session: &bivouac::Session) -> bivouac::Result<()> {
/// use bivouac::Protected;
///
/// let (mut step, mut temperature) = (0u64, vec![20.0f64; 1 << 20]);
/// session.restore("heat", Protected::new().protect("step", &mut step).protect("temperature", &mut temperature))?;
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct Protected<'a> {
    parts: Vec<(String, Box<dyn Part + 'a>)>,
    /// The GPU of the parts in device memory, if there are any.
    gpu: Option<Gpu<'a>>,
    /// Whether parts name different caches or streams.
    has_two_gpus: bool,
}

impl<'a> Protected<'a> {
    /// Creates a `Protected` without parts.
    pub fn new() -> Protected<'a> {
        Protected::default()
    }

    /// The parts that a state describes.
    pub fn of<C: Checkpoint + ?Sized>(state: &'a mut C) -> Protected<'a> {
        let mut parts = Protected::new();
        state.describe(&mut parts);
        parts
    }

    /// Adds an array, a number, a boolean or a string as region `name`. A restart gives a vector the length that was saved; any other array
    /// must already have that length. The region belongs to its rank: a checkpoint with such a region can be restored only on the number of
    /// ranks that took it.
    pub fn protect<T: Protect + ?Sized>(&mut self, name: &str, data: &'a mut T) -> &mut Self {
        data.protect(name, self);
        self
    }

    /// Adds a small value that `serde` can encode. Otherwise the same as [`Protected::protect`].
    pub fn protect_value<T: Serialize + DeserializeOwned>(&mut self, name: &str, value: &'a mut T) -> &mut Self {
        self.add(name, Value(value))
    }

    /// Adds a small value that is the same on all ranks, such as a step or a time. It can be restored on any number of ranks. See
    /// [`CheckpointBuilder::shared`].
    pub fn protect_shared<T: Serialize + DeserializeOwned>(&mut self, name: &str, value: &'a mut T) -> &mut Self {
        self.add(name, Shared(value))
    }

    /// Adds a small value of this rank, such as the state of its random number generator. `on_resize` says what happens to the saved value
    /// when the checkpoint is restored on a different number of ranks. Such a restart leaves `value` unchanged. See
    /// [`CheckpointBuilder::per_rank`].
    pub fn protect_per_rank<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &str,
        value: &'a mut T,
        on_resize: OnResize,
    ) -> &mut Self {
        self.add(name, PerRank(value, on_resize))
    }

    /// Adds this rank's part of an array that was decomposed with [`Session::decompose`]. `memory` holds the rank's box including its ghost
    /// cells, which are not saved. The part can be restored on any number of ranks, and on any decomposition. See
    /// [`CheckpointBuilder::save_on`].
    pub fn protect_on<T: Element>(&mut self, name: &str, on: &Decomposition, memory: &'a mut [T]) -> &mut Self {
        self.add(name, On(on.clone(), vec![memory]))
    }

    /// Adds an array of which this rank owns any number of boxes. `memory` has a slice for each box. See
    /// [`CheckpointBuilder::save_boxes_on`].
    pub fn protect_boxes_on<T: Element>(
        &mut self,
        name: &str,
        on: &Decomposition,
        memory: Vec<&'a mut [T]>,
    ) -> &mut Self {
        self.add(name, On(on.clone(), memory))
    }

    /// Adds the parts of another state, each under the name `<name>/<part>`.
    pub fn protect_state<C: Checkpoint + ?Sized>(&mut self, name: &str, state: &'a mut C) -> &mut Self {
        let Protected { parts, gpu, has_two_gpus } = Protected::of(state);
        self.parts.extend(parts.into_iter().map(|(own, part)| (format!("{name}/{own}"), part)));
        self.has_two_gpus |= has_two_gpus;
        gpu.into_iter().for_each(|gpu| self.set_gpu(gpu));
        self
    }

    pub(super) fn add(&mut self, name: &str, part: impl Part + 'a) -> &mut Self {
        self.parts.push((name.to_owned(), Box::new(part)));
        self
    }

    pub(super) fn set_gpu(&mut self, gpu: Gpu<'a>) {
        self.has_two_gpus |= self.gpu.replace(gpu).is_some_and(|before| !before.is(&gpu));
    }

    fn save<'c>(&'c self, builder: &mut CheckpointBuilder<'c>) -> Result<()> {
        if self.has_two_gpus {
            return Err(RegionError::TwoStreams.into());
        }
        self.parts.iter().try_for_each(|(name, part)| part.save(name, builder))
    }
}

impl Checkpoint for Protected<'_> {
    fn describe<'a>(&'a mut self, parts: &mut Protected<'a>) {
        for (name, part) in &mut self.parts {
            parts.add(name, &mut **part);
        }
        parts.has_two_gpus |= self.has_two_gpus;
        self.gpu.into_iter().for_each(|gpu| parts.set_gpu(gpu));
    }
}

impl<C: Checkpoint + ?Sized> Checkpoint for &mut C {
    fn describe<'a>(&'a mut self, parts: &mut Protected<'a>) {
        (**self).describe(parts);
    }
}

impl<C: Checkpoint + ?Sized> Checkpoint for Box<C> {
    fn describe<'a>(&'a mut self, parts: &mut Protected<'a>) {
        (**self).describe(parts);
    }
}

/// The types that [`Protected::protect`] takes: arrays of [`Element`]s, numbers, booleans and strings. In a structure that derives
/// [`Checkpoint`], a field without an attribute must have one of these types.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither an array of elements nor a number, a boolean or a string",
    note = "for a value that serde can encode, use `protect_value`, or `#[checkpoint(value)]` on the field",
    note = "for a state of its own, use `protect_state`, or `#[checkpoint(state)]`; to leave it out, use `#[checkpoint(skip)]`"
)]
pub trait Protect {
    /// Adds this data to `parts` under `name`.
    fn protect<'a>(&'a mut self, name: &str, parts: &mut Protected<'a>);
}

impl<T: Element> Protect for [T] {
    fn protect<'a>(&'a mut self, name: &str, parts: &mut Protected<'a>) {
        parts.add(name, Array(self));
    }
}

impl<T: Element, const N: usize> Protect for [T; N] {
    fn protect<'a>(&'a mut self, name: &str, parts: &mut Protected<'a>) {
        parts.add(name, Array(self));
    }
}

impl<T: Element> Protect for Box<[T]> {
    fn protect<'a>(&'a mut self, name: &str, parts: &mut Protected<'a>) {
        parts.add(name, Array(self));
    }
}

impl<T: Element> Protect for Vec<T> {
    fn protect<'a>(&'a mut self, name: &str, parts: &mut Protected<'a>) {
        parts.add(name, Vector(self));
    }
}

macro_rules! values {
    ($($type:ty),*) => { $(
        impl Protect for $type {
            fn protect<'a>(&'a mut self, name: &str, parts: &mut Protected<'a>) {
                parts.add(name, Value(self));
            }
        }
    )* };
}
values!(bool, char, u8, i8, u16, i16, u32, i32, u64, i64, u128, i128, usize, isize, f32, f64, String);

/// A part under its name, as a checkpoint saves it and an attempt loads it.
pub(super) trait Part {
    fn save<'c>(&'c self, name: &str, builder: &mut CheckpointBuilder<'c>) -> Result<()>;

    fn load(&mut self, name: &str, loading: &mut Loading<'_>) -> Result<(), LoadError>;
}

/// An attempt from which parts are loaded.
pub(super) struct Loading<'s> {
    pub attempt: &'s mut Attempt,
    /// Arrays in device memory, which are loaded together once everything else is.
    pub spans: Vec<(String, ElementType, DeviceSpan)>,
}

impl<P: Part + ?Sized> Part for &mut P {
    fn save<'c>(&'c self, name: &str, builder: &mut CheckpointBuilder<'c>) -> Result<()> {
        (**self).save(name, builder)
    }

    fn load(&mut self, name: &str, loading: &mut Loading<'_>) -> Result<(), LoadError> {
        (**self).load(name, loading)
    }
}

struct Array<'a, T>(&'a mut [T]);
struct Vector<'a, T>(&'a mut Vec<T>);
struct Value<'a, T>(&'a mut T);
struct Shared<'a, T>(&'a mut T);
struct PerRank<'a, T>(&'a mut T, OnResize);
struct On<'a, T>(Decomposition, Vec<&'a mut [T]>);

impl<T: Element> Part for Array<'_, T> {
    fn save<'c>(&'c self, name: &str, builder: &mut CheckpointBuilder<'c>) -> Result<()> {
        builder.save(name, &*self.0)
    }

    fn load(&mut self, name: &str, loading: &mut Loading<'_>) -> Result<(), LoadError> {
        loading.attempt.load(name, self.0)
    }
}

impl<T: Element> Part for Vector<'_, T> {
    fn save<'c>(&'c self, name: &str, builder: &mut CheckpointBuilder<'c>) -> Result<()> {
        builder.save(name, self.0)
    }

    fn load(&mut self, name: &str, loading: &mut Loading<'_>) -> Result<(), LoadError> {
        let bytes = loading.attempt.describe(name)?.bytes;
        if bytes == size_of_val::<[T]>(self.0) as u64 {
            // The vector has the saved length: its memory is reused, and its pages stay where the program has placed them.
            return loading.attempt.load(name, self.0);
        }
        *self.0 = loading.attempt.load_vec(name)?;
        Ok(())
    }
}

impl<T: Serialize + DeserializeOwned> Part for Value<'_, T> {
    fn save<'c>(&'c self, name: &str, builder: &mut CheckpointBuilder<'c>) -> Result<()> {
        builder.value(name, self.0)
    }

    fn load(&mut self, name: &str, loading: &mut Loading<'_>) -> Result<(), LoadError> {
        *self.0 = loading.attempt.value(name)?;
        Ok(())
    }
}

impl<T: Serialize + DeserializeOwned> Part for Shared<'_, T> {
    fn save<'c>(&'c self, name: &str, builder: &mut CheckpointBuilder<'c>) -> Result<()> {
        builder.shared(name, self.0)
    }

    fn load(&mut self, name: &str, loading: &mut Loading<'_>) -> Result<(), LoadError> {
        *self.0 = loading.attempt.shared(name)?;
        Ok(())
    }
}

impl<T: Serialize + DeserializeOwned> Part for PerRank<'_, T> {
    fn save<'c>(&'c self, name: &str, builder: &mut CheckpointBuilder<'c>) -> Result<()> {
        builder.per_rank(name, self.0, self.1)
    }

    fn load(&mut self, name: &str, loading: &mut Loading<'_>) -> Result<(), LoadError> {
        if !loading.attempt.is_resized() {
            *self.0 = loading.attempt.value(name)?;
        }
        Ok(())
    }
}

impl<T: Element> Part for On<'_, T> {
    fn save<'c>(&'c self, name: &str, builder: &mut CheckpointBuilder<'c>) -> Result<()> {
        let On(on, memory) = self;
        match &memory[..] {
            [one] => builder.save_on(name, on, one),
            all => builder.save_boxes_on(name, on, &all.iter().map(|memory| &**memory).collect::<Vec<_>>()),
        }
    }

    fn load(&mut self, name: &str, loading: &mut Loading<'_>) -> Result<(), LoadError> {
        let On(on, memory) = self;
        match &mut memory[..] {
            [one] => loading.attempt.load_on(name, on, one),
            all => loading.attempt.load_boxes_on(name, on, all),
        }
    }
}

impl Session {
    /// Saves all parts that `state` describes as version `version` of the series `name`. When this returns, the program may write to them
    /// again. The checkpoint has been committed at a level only once the [`Pending`] says so.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session) -> bivouac::Result<()> {
    /// #[derive(bivouac::Checkpoint)]
    /// struct Heat {
    ///     step: u64,
    ///     temperature: Vec<f64>,
    /// }
    /// let mut heat = Heat { step: 0, temperature: vec![20.0; 1 << 20] };
    /// session.restore("heat", &mut heat)?;
    /// heat.step += 1;
    /// session.checkpoint("heat", heat.step, &mut heat)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// All ranks, with the same name, version and parts (lengths may differ); the call does not wait for the other ranks.
    ///
    /// # Blocking
    /// As long as [`CheckpointBuilder::capture`] or, with parts in device memory, [`DeviceCheckpointBuilder::capture`].
    ///
    /// # Errors
    /// [`Error::Name`](crate::Error::Name), [`Error::Region`](crate::Error::Region), and the errors of the builder's `capture`; the other
    /// ranks are told in their verdict.
    pub fn checkpoint<C: Checkpoint + ?Sized>(&self, name: &str, version: u64, state: &mut C) -> Result<Pending> {
        let parts = Protected::of(state);
        let mut builder = self.begin_checkpoint(name, version)?;
        match parts.save(&mut builder) {
            Ok(()) => match parts.gpu {
                Some(gpu) => DeviceCheckpointBuilder::new(builder, gpu).capture(),
                None => builder.capture(),
            },
            Err(error) => {
                builder.refuse(&error.to_string());
                Err(error)
            }
        }
    }

    /// Restores the newest version of the series `name` that all ranks can restore, and loads all parts that `state` describes. If there is
    /// nothing to restore, this returns `None` and leaves `state` unchanged. Regions of the checkpoint that `state` does not describe are
    /// left out and named in a warning.
    ///
    /// If a rank finds damage and no copy is good, all ranks load the next older version instead. If a part is missing, or was saved with
    /// another type or length, the restart ends with an error.
    ///
    /// # Collective
    /// All ranks, with the same name and parts.
    ///
    /// # Blocking
    /// See [`Restore::run`].
    ///
    /// # Errors
    /// [`Error::Restart`](crate::Error::Restart), on all ranks alike. The content of `state` is then unspecified.
    pub fn restore<C: Checkpoint + ?Sized>(&self, name: &str, state: &mut C) -> Result<Option<Restored>> {
        self.begin_restore(name).into_state(state)
    }

    /// Restores one version, even one that a later run left behind. Later checkpoints of this run then descend from it. Otherwise the same
    /// as [`Session::restore`].
    ///
    /// # Collective
    /// All ranks, with the same name, version and parts.
    ///
    /// # Blocking
    /// See [`Restore::run`].
    ///
    /// # Errors
    /// The errors of [`Session::restore`], and [`RestartError::NoSuchVersion`](crate::RestartError::NoSuchVersion) if the version does
    /// not exist.
    pub fn restore_version<C: Checkpoint + ?Sized>(
        &self,
        name: &str,
        version: u64,
        state: &mut C,
    ) -> Result<Option<Restored>> {
        self.begin_restore(name).version(version).into_state(state)
    }
}

impl Restore<'_> {
    fn into_state<C: Checkpoint + ?Sized>(self, state: &mut C) -> Result<Option<Restored>> {
        let session = self.session();
        self.run(|attempt| {
            let left_out = attempt.load_parts(state)?;
            session.say_left_out(&left_out);
            Ok(())
        })
    }
}

impl Session {
    /// Warns of regions that were not restored because they are not protected.
    #[doc(hidden)]
    pub fn say_left_out(&self, regions: &[String]) {
        if !regions.is_empty() {
            let named = named(regions);
            let text =
                format!("event=not-restored reason=\"the checkpoint has regions that are not protected: {named}\"");
            self.engine().note(text);
        }
    }
}

/// The names of these regions as text; at most `NAMES_MAX` of them are written out.
#[doc(hidden)]
pub fn named(regions: &[String]) -> String {
    list(regions.iter().map(|name| format!("{name:?}")), NAMES_MAX, ", ")
}

impl<'a> CheckpointBuilder<'a> {
    /// Adds all `parts`, in addition to regions that the program adds itself. If some of the parts are in device memory, add them to a
    /// [`DeviceCheckpointBuilder`].
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, heat: &mut impl bivouac::Checkpoint, rows: &[f64], step: u64) -> bivouac::Result<()> {
    /// let parts = bivouac::Protected::of(heat);
    /// let mut ckpt = session.begin_checkpoint("heat", step)?;
    /// ckpt.save_protected(&parts)?;
    /// ckpt.save("rows", rows)?;
    /// ckpt.capture()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local. All ranks add the same parts.
    ///
    /// # Errors
    /// [`Error::Region`](crate::Error::Region): a name is unusable or is already in use, or a part does not fit its decomposition.
    pub fn save_protected(&mut self, parts: &'a Protected<'_>) -> Result<()> {
        parts.save(self)
    }
}

impl Attempt {
    /// Loads all parts that `state` describes. The program loads other regions of the checkpoint itself, or leaves them out.
    ///
    /// # Collective
    /// Local, unless the load of a part is collective. Then all ranks, as for [`Attempt::load_on`], [`Attempt::load_rows`] and
    /// [`Attempt::shared`].
    ///
    /// # Blocking
    /// On the tiers that hold the copies; if the call is collective, until all ranks have called.
    ///
    /// # Errors
    /// The errors of [`Attempt::load`], for the first part that cannot be loaded. The content of `state` is then unspecified.
    pub fn load_protected<C: Checkpoint + ?Sized>(&mut self, state: &mut C) -> Result<(), LoadError> {
        self.load_parts(state).map(drop)
    }

    /// Loads the parts, and returns the names of the regions that are not described as parts.
    fn load_parts<C: Checkpoint + ?Sized>(&mut self, state: &mut C) -> Result<Vec<String>, LoadError> {
        let mut protected = Protected::of(state);
        let mut loading = Loading { attempt: self, spans: Vec::new() };
        for (name, part) in &mut protected.parts {
            part.load(name, &mut loading)?;
        }
        let Loading { spans, .. } = loading;
        if let Some(gpu) = protected.gpu {
            let spans = spans.iter().map(|(name, element, span)| (name.as_str(), *element, span.clone()));
            self.load_spans(&spans.collect::<Vec<_>>(), gpu.stream)?;
        }
        self.left_out(protected.parts.iter().map(|(name, _)| name.as_str()))
    }
    /// The names of the checkpoint's regions that are not among `protected`.
    #[doc(hidden)]
    pub fn left_out<'n>(&mut self, protected: impl Iterator<Item = &'n str>) -> Result<Vec<String>, LoadError> {
        let protected: HashSet<&str> = protected.collect();
        let saved = self.regions()?.into_iter().map(|(name, _)| name);
        Ok(saved.filter(|name| !protected.contains(name.as_str())).collect())
    }
}
