//! Parts of a program's state that are in device memory.
#![forbid(unsafe_code)]

use super::checkpoint::CheckpointBuilder;
use super::device::{Gpu, Way};
use super::error::Result;
use super::protected::{Loading, Part, Protected};
use crate::decomposition::Decomposition;
use crate::device::{DeviceSpan, Stream};
use crate::recovery::LoadError;
use crate::region::{self, Element};
use crate::transfer::history::Caches;
use crate::transfer::offload::Offload;
use std::marker::PhantomData;

/// Takes parts of a state that are in device memory. It comes from [`Protected::with_device`] or [`Protected::with_offload`].
pub struct DeviceProtected<'p, 'a> {
    parts: &'p mut Protected<'a>,
    stream: &'a dyn Stream,
}

impl<'a> Protected<'a> {
    /// Lets the state have parts in device memory. A checkpoint saves the content that these parts have once the work enqueued on `stream`
    /// has run. They pass through the GPU cache of `caches` ([`CheckpointBuilder::with_device`]). A restart loads them on the same stream.
    /// All parts of a state must use the same caches and the same stream.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session) -> bivouac::Result<()> {
    /// use bivouac::device::{DeviceSpan, Stream};
    /// use bivouac::{Caches, Checkpoint, Protected};
    /// use std::sync::Arc;
    ///
    /// struct Heat {
    ///     step: u64,
    ///     temperature: DeviceSpan,
    ///     caches: Caches, // from `session.caches`, once, at the start
    ///     stream: Arc<dyn Stream>,
    /// }
    ///
    /// impl Checkpoint for Heat {
    ///     fn describe<'a>(&'a mut self, parts: &mut Protected<'a>) {
    ///         parts.protect("step", &mut self.step);
    ///         parts.with_device(&self.caches, &*self.stream).protect::<f64>("temperature", &self.temperature);
    ///     }
    /// }
    /// # let mut heat: Heat = todo!();
    /// session.restore("heat", &mut heat)?;
    /// heat.step += 1; // … launch kernels on the stream …
    /// session.checkpoint("heat", heat.step, &mut heat)?;
    /// # Ok(()) }
    /// ```
    pub fn with_device(&mut self, caches: &'a Caches, stream: &'a dyn Stream) -> DeviceProtected<'_, 'a> {
        self.on(Gpu { way: Way::Copied(caches), stream })
    }

    /// Lets the state have parts in device memory if the program declares what it writes. See [`CheckpointBuilder::with_offload`].
    /// Otherwise the same as [`Protected::with_device`].
    pub fn with_offload(&mut self, offload: &'a Offload, stream: &'a dyn Stream) -> DeviceProtected<'_, 'a> {
        self.on(Gpu { way: Way::Marked(offload), stream })
    }

    fn on(&mut self, gpu: Gpu<'a>) -> DeviceProtected<'_, 'a> {
        self.set_gpu(gpu);
        DeviceProtected { parts: self, stream: gpu.stream }
    }
}

impl<'a> DeviceProtected<'_, 'a> {
    /// Adds device memory that holds elements of type `T` as region `name`. A restart needs memory of the length that was saved. The region
    /// belongs to its rank: a checkpoint with such a region can be restored only on the number of ranks that took it.
    pub fn protect<T: Element>(&mut self, name: &str, span: &'a DeviceSpan) -> &mut Self {
        self.parts.add(name, Array::<T>(span, PhantomData));
        self
    }

    /// Adds this rank's part of an array that was decomposed with [`Session::decompose`](crate::Session::decompose). `span` is the device
    /// memory of the rank's box including its ghost cells, with elements of type `T`. Otherwise the same as [`Protected::protect_on`].
    pub fn protect_on<T: Element>(&mut self, name: &str, on: &Decomposition, span: &'a DeviceSpan) -> &mut Self {
        let owns_nothing = on.boxes() == 0 && span.bytes() == 0;
        self.protect_boxes_on::<T>(name, on, if owns_nothing { vec![] } else { vec![span] })
    }

    /// Adds an array of which this rank owns any number of boxes, with the device memory of each box. Otherwise the same as
    /// [`DeviceProtected::protect_on`].
    pub fn protect_boxes_on<T: Element>(
        &mut self,
        name: &str,
        on: &Decomposition,
        memory: Vec<&'a DeviceSpan>,
    ) -> &mut Self {
        self.parts.add(name, On::<T> { on: on.clone(), memory, stream: self.stream, element: PhantomData });
        self
    }
}

struct Array<'a, T>(&'a DeviceSpan, PhantomData<T>);

struct On<'a, T> {
    on: Decomposition,
    memory: Vec<&'a DeviceSpan>,
    stream: &'a dyn Stream,
    element: PhantomData<T>,
}

impl<T: Element> Part for Array<'_, T> {
    fn save<'c>(&'c self, name: &str, builder: &mut CheckpointBuilder<'c>) -> Result<()> {
        builder.add(region::device_array::<T>(name, self.0, None)?)
    }

    fn load(&mut self, name: &str, loading: &mut Loading<'_>) -> Result<(), LoadError> {
        loading.spans.push((name.to_owned(), T::TYPE, self.0.clone()));
        Ok(())
    }
}

impl<T: Element> Part for On<'_, T> {
    fn save<'c>(&'c self, name: &str, builder: &mut CheckpointBuilder<'c>) -> Result<()> {
        region::check_element::<T>(name)?;
        builder.save_spans_on(name, &self.on, T::TYPE, &self.memory)
    }

    fn load(&mut self, name: &str, loading: &mut Loading<'_>) -> Result<(), LoadError> {
        let memory: Vec<DeviceSpan> = self.memory.iter().map(|span| (*span).clone()).collect();
        loading.attempt.load_device_boxes_on::<T>(name, &self.on, &memory, self.stream)
    }
}
