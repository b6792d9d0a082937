//! One shot: recorded over the true ground, and migrated with the smooth one.
#![forbid(unsafe_code)]

use super::machine::{Machine, Medium};
use super::model::{SURFACE_ROW, Survey};
use super::timeline::Recorder;
use super::wavefields::Wavefields;
use bivouac::device::DeviceSpan;
use std::error::Error;
use std::mem::swap;

/// Device memory for one shot after another, and what computes on it.
pub struct Migration<'a> {
    machine: &'a dyn Machine,
    survey: &'a Survey,
    /// The ground that is recorded, and the ground that the migration knows.
    ground: [&'a Medium; 2],
    /// The propagating field, and the field one step before it.
    now: DeviceSpan,
    before: DeviceSpan,
    /// A source wavefield that was brought back.
    source: DeviceSpan,
    /// What the receivers hear, a row per step; the rows before the first step and after the last stay zero.
    traces: DeviceSpan,
    image: DeviceSpan,
}

impl<'a> Migration<'a> {
    /// Memory for shots over `truth`, migrated with `smooth`.
    ///
    /// # Errors
    /// Any error that the device reports.
    pub fn new(
        machine: &'a dyn Machine,
        survey: &'a Survey,
        truth: &'a Medium,
        smooth: &'a Medium,
    ) -> Result<Migration<'a>, Box<dyn Error>> {
        let field = || machine.device().allocate(survey.field_bytes());
        let grid = survey.shape.grid;
        let traces = machine.device().allocate(4 * (grid.nx * (survey.steps + 2)) as u64)?;
        let image = machine.device().allocate(4 * (grid.nx * grid.nz) as u64)?;
        let (now, before, source) = (field()?, field()?, field()?);
        Ok(Migration { machine, survey, ground: [truth, smooth], now, before, source, traces, image })
    }

    /// Migrates a shot; returns its image, row by row. `each_state` is called before each state is kept or recalled.
    ///
    /// # Errors
    /// Any error that the device or the history reports.
    pub fn shot(
        &mut self,
        shot: usize,
        wavefields: &mut Wavefields,
        recorder: &mut Recorder,
        each_state: &dyn Fn(),
    ) -> Result<Vec<f32>, Box<dyn Error>> {
        recorder.begin();
        self.observe(shot)?;
        recorder.end("observe", shot as u64);
        recorder.begin();
        self.propagate_source(shot, wavefields, recorder, each_state)?;
        wavefields.turn();
        self.propagate_receivers(wavefields, recorder, each_state)?;
        let mut image = vec![0f32; self.survey.shape.grid.nx * self.survey.shape.grid.nz];
        let bytes = bytemuck::cast_slice_mut(&mut image);
        self.machine.stream().download(&mut [(self.image.clone(), bytes)], None)?;
        Ok(image)
    }

    /// Records what the receivers hear over the true ground.
    fn observe(&mut self, shot: usize) -> Result<(), Box<dyn Error>> {
        self.clear(&[&self.now, &self.before, &self.traces, &self.image])?;
        for step in 1..=self.survey.steps {
            self.fire(0, shot, step)?;
            self.machine.record(&self.now, &self.traces, step)?;
        }
        Ok(self.machine.stream().finish()?)
    }

    /// Propagates the source through the smooth ground and keeps its states.
    fn propagate_source(
        &mut self,
        shot: usize,
        wavefields: &mut Wavefields,
        recorder: &mut Recorder,
        each_state: &dyn Fn(),
    ) -> Result<(), Box<dyn Error>> {
        self.clear(&[&self.now, &self.before])?;
        for step in 1..=self.survey.steps {
            self.fire(1, shot, step)?;
            if let Some(state) = self.survey.state(step) {
                // Without this wait, the time of the steps would be counted as time of the call that keeps the state.
                self.machine.stream().finish()?;
                recorder.end("forward", state);
                each_state();
                wavefields.keep(self.machine, state, &self.now)?;
                recorder.begin();
            }
        }
        Ok(())
    }

    /// Propagates what the receivers heard back in time and correlates it with the states of the source's wavefield.
    fn propagate_receivers(
        &mut self,
        wavefields: &mut Wavefields,
        recorder: &mut Recorder,
        each_state: &dyn Fn(),
    ) -> Result<(), Box<dyn Error>> {
        self.clear(&[&self.now, &self.before])?;
        for step in (1..=self.survey.steps).rev() {
            self.advance(1)?;
            self.machine.inject(self.ground[1], &self.now, &self.traces, step)?;
            if let Some(state) = self.survey.state(step) {
                self.machine.stream().finish()?;
                recorder.end("backward", state);
                each_state();
                wavefields.recall(self.machine, state, &self.source)?;
                recorder.begin();
                self.machine.correlate(&self.source, &self.now, &self.image)?;
            }
        }
        self.machine.stream().finish()?;
        recorder.end("backward", 0);
        Ok(())
    }

    /// One step of the source's wavefield.
    fn fire(&mut self, ground: usize, shot: usize, step: usize) -> Result<(), Box<dyn Error>> {
        self.advance(ground)?;
        let cell = self.survey.shape.index(self.survey.source_column(shot), SURFACE_ROW);
        Ok(self.machine.add_source(self.ground[ground], &self.now, cell, self.survey.wavelet(step))?)
    }

    fn advance(&mut self, ground: usize) -> Result<(), Box<dyn Error>> {
        self.machine.step(self.ground[ground], &self.now, &self.before)?;
        swap(&mut self.now, &mut self.before);
        Ok(())
    }

    fn clear(&self, spans: &[&DeviceSpan]) -> Result<(), Box<dyn Error>> {
        for span in spans {
            self.machine.stream().upload(&[(&vec![0; span.bytes() as usize], (*span).clone())], None)?;
        }
        Ok(())
    }
}
