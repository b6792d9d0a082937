//! Regions that are written and read as streams of bytes.
#![forbid(unsafe_code)]

use super::checkpoint::CheckpointBuilder;
use super::error::{Error, Result};
use crate::base::ids::text_hash;
use crate::base::units::page_ceil;
use crate::format::ElementType;
use crate::region::{self, RegionData, RegionError, SavedRegion};
use crate::transfer::CaptureError;
use crate::transfer::stream::{ByteStream, StreamSpec};
use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

/// Writes a region of a checkpoint byte by byte. It comes from [`CheckpointBuilder::writer`]. [`RegionWriter::finish`] ends the region, and
/// so does dropping the writer.
#[must_use = "a writer that is dropped at once leaves an empty region"]
pub struct RegionWriter<'w, 'a> {
    builder: &'w mut CheckpointBuilder<'a>,
    /// Present until the region has ended or failed.
    stream: Option<ByteStream>,
}

impl RegionWriter<'_, '_> {
    /// Ends the region, and returns how many bytes it has.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For what is left to write.
    ///
    /// # Errors
    /// [`Error::Capture`]: no tier could take the region, and the checkpoint cannot be used.
    pub fn finish(mut self) -> Result<u64> {
        self.end()
    }

    fn end(&mut self) -> Result<u64> {
        let Some(stream) = self.stream.take() else { return Ok(0) };
        let bytes = stream.length();
        self.builder.end_stream(stream).map(|()| bytes)
    }
}

impl Write for RegionWriter<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stream = self.stream.as_mut().ok_or_else(|| io::Error::other("the stream has already failed"))?;
        let written = self.builder.write_stream(stream, bytes);
        written.map(|()| bytes.len()).map_err(|error| {
            self.stream = None;
            io::Error::other(error)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for RegionWriter<'_, '_> {
    /// An error here makes the capture fail.
    fn drop(&mut self) {
        _ = self.end();
    }
}

impl<'a> CheckpointBuilder<'a> {
    /// Adds a region of bytes whose length is not known until its end, for a serialiser, or for a library that wants a file. The region is
    /// copied as it is written, with the digest of every block, and there is no second copy. If node memory has no slot that is long
    /// enough, the region goes to a file. [`Attempt::reader`](crate::Attempt::reader) reads it back; in every other respect it is an array
    /// of bytes.
    ///
    /// The region belongs to its rank. Only one such region can be written at a time. Add arrays before the first stream: Bivouac then
    /// leaves room for the arrays, which avoids a copy.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, step: u64, mesh: &std::collections::BTreeMap<u64, [f64; 3]>)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::Write;
    ///
    /// let mut ckpt = session.begin_checkpoint("heat", step)?;
    /// let mut writer = ckpt.writer("mesh")?;
    /// for (id, point) in mesh {
    ///     writeln!(writer, "{id} {point:?}")?;
    /// }
    /// writer.finish()?;
    /// ckpt.value("step", &step)?;
    /// ckpt.capture()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local. All ranks add the region; its length may differ between ranks.
    ///
    /// # Blocking
    /// As long as [`CheckpointBuilder::capture`], and each write may block in the same way.
    ///
    /// # Errors
    /// [`Error::Region`]: the name is unusable or is already in use. [`Error::Capture`]: no tier has room; the checkpoint cannot be used.
    pub fn writer(&mut self, name: &str) -> Result<RegionWriter<'_, 'a>> {
        let stream = self.begin_stream(name, 0)?;
        Ok(RegionWriter { builder: self, stream: Some(stream) })
    }

    /// Begins a region that is written by [`CheckpointBuilder::write_stream`]. Regions with `room` bytes in total come after it.
    #[doc(hidden)]
    pub fn begin_stream(&mut self, name: &str, room: u64) -> Result<ByteStream> {
        self.room = room;
        let saved = region::typed(name, ElementType::U8, &[0], RegionData::Host(Cow::Borrowed(&[])))?;
        if self.regions.iter().any(|known| known.region.name == name) {
            return Err(RegionError::Twice { name: name.into() }.into());
        }
        let held = self.regions.iter().filter_map(|saved| match saved.data {
            RegionData::Held { bytes, address } => {
                Some(SavedRegion { region: saved.region.clone(), data: RegionData::Held { bytes, address } })
            }
            _ => None,
        });
        let regions = held.chain([saved]).collect();
        let begun = self.engine.clock().now();
        let before = self.held.take();
        let stream = self.engine.begin_stream(&self.stream_spec(), regions, before);
        self.has_waited(begun);
        stream.map_err(|error| self.broken_by(error))
    }

    /// Writes all of `bytes`. After an error neither the stream nor the checkpoint can be used.
    #[doc(hidden)]
    pub fn write_stream(&mut self, stream: &mut ByteStream, bytes: &[u8]) -> Result<()> {
        let begun = self.engine.clock().now();
        let written = self.engine.write_stream(&self.stream_spec(), stream, bytes);
        self.has_waited(begun);
        written.map_err(|error| self.broken_by(error))
    }

    /// Ends the region of a stream.
    #[doc(hidden)]
    pub fn end_stream(&mut self, stream: ByteStream) -> Result<()> {
        let begun = self.engine.clock().now();
        let ended = self.engine.end_stream(&self.stream_spec(), stream);
        let (held, region) = ended.map_err(|error| self.broken_by(error))?;
        self.held = Some(held);
        self.names.insert(text_hash(&region.name));
        // Held regions come first.
        let place = self.regions.iter().take_while(|saved| matches!(saved.data, RegionData::Held { .. })).count();
        let data = RegionData::Held { bytes: region.bytes, address: 0 };
        self.terms.make_place(place);
        self.regions.insert(place, SavedRegion { region, data });
        self.has_waited(begun);
        Ok(())
    }

    fn stream_spec(&self) -> StreamSpec<'_> {
        let others = self.regions.iter().filter(|saved| !matches!(saved.data, RegionData::Held { .. }));
        let others: u64 = others.map(|saved| page_ceil(saved.data.bytes())).sum();
        StreamSpec { operation: self.operation, name: &self.name, version: self.version, others: others + self.room }
    }

    /// Records that a region is missing, so that no rank captures the checkpoint.
    fn broken_by(&mut self, error: CaptureError) -> Error {
        self.broken = Some(format!("a region that was written as a stream is missing: {error}"));
        error.into()
    }

    /// Adds the time since `begun` to the application's waiting time. The application's own work between the calls does not count.
    fn has_waited(&mut self, begun: Duration) {
        let took = self.engine.clock().now().saturating_sub(begun);
        self.held_for = Some(self.held_for.unwrap_or_default() + took);
    }
}
