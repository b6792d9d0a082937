//! The machines of Lee et al., GPU Snapshot (ICS'19), tables 1 and 2.
//!
//! Table 1 prints nine of them ([`PRINTED`]). Figure 2 needs one for each peak and each density. [`column()`] works
//! these out by the rules that the printed columns follow, and a test checks it against every printed digit.
//!
//! Failures of GPUs and processors are recovered from node memory, those of nodes from the node's disk, and those of
//! the system from the file system. Every write blocks the program. Data is read at the rates at which it is written,
//! because the paper prints no recovery times.

use super::machine::{Capture, Failures, Machine, Site, Store};
use crate::config::Scheme;
use crate::policy::intervals::Volume;

const GB: f64 = 1e9;
/// Bytes a second between nodes. The paper gives no figure; this one is that of Summit, on which
/// the machines are modelled.
const NETWORK: f64 = 25.0 * GB;
/// The memory of a GPU, in bytes.
const GPU_MEMORY: f64 = 32.0 * GB;
/// The number of GPUs in a system of 1 EFLOP: 57,600 GPUs of 7.8 TFLOP make 0.45 EFLOP.
const GPUS_OF_EXAFLOP: f64 = 128_000.0;
/// The peak of a GPU and of a processor, in TFLOP.
const PEAKS: [f64; 2] = [7.8, 0.384];
/// The bandwidth of a GPU's link and of all links of a processor (32 lanes of PCIe 4.0), in GB/s.
const LINKS: [f64; 2] = [8.0, 64.0];
/// The bandwidth of a node's disk, in GB/s.
const DISK: f64 = 2.15;
/// The bandwidth of the file system (GB/s) at a peak (TFLOP), and the factor by which it grows with each doubling of
/// the peak. The 6000 nodes of table 2 have 191.8 PFLOP; with that in place of 192, two printed numbers would be one
/// higher in their last digit.
const FILES: (f64, f64, f64) = (2500.0, 192e3, 1.3);
/// Failures a second of a GPU and of a node, chosen to give the printed sums.
const FAILURES: [f64; 2] = [1.139e-9, 1.4433e-10];
/// Failures a second of the whole system, in each column.
pub(super) const SYSTEM_FAILURES: f64 = 1.77e-7;
/// GPUs for each processor, and failures a second of a processor. The paper gives no reason why a processor's failures
/// depend on the density.
const PROCESSORS: [(u64, f64); 5] = [(2, 2.76e-10), (4, 2.87e-10), (8, 3.0e-10), (16, 3.17e-10), (32, 3.36e-10)];

/// The peaks of the paper's systems, in EFLOP.
pub const PEAKS_EXAFLOP: [f64; 5] = [0.45, 0.9, 1.8, 3.6, 7.2];
/// The densities of the paper's systems, in GPUs for each processor.
pub const DENSITIES: [u64; 5] = [2, 4, 8, 16, 32];

/// A column of table 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Column {
    /// The peak of the whole system, in EFLOP.
    pub peak: f64,
    /// GPUs for each processor.
    pub density: u64,
    /// The total number of GPUs.
    pub gpus: u64,
    /// The number of nodes, each with two processors.
    pub nodes: u64,
    /// The total bandwidth of all PCIe links, in GB/s.
    pub links: f64,
    /// The total bandwidth of the disks of all nodes, in GB/s.
    pub disks: f64,
    /// The bandwidth of the file system, in GB/s.
    pub files: f64,
    /// Failures a second of all GPUs, of all processors and of all nodes.
    pub failures: [f64; 3],
}

const fn printed(at: (f64, u64), counts: [u64; 2], [links, disks, files]: [f64; 3], failures: [f64; 3]) -> Column {
    Column { peak: at.0, density: at.1, gpus: counts[0], nodes: counts[1], links, disks, files, failures }
}

/// The columns as the paper prints them.
pub const PRINTED: [Column; 9] = [
    printed((0.45, 16), [57_600, 1_800], [2.30e5, 3.87e3, 3.45e3], [6.56e-5, 1.14e-6, 2.60e-7]),
    printed((0.9, 16), [115_200, 3_600], [4.61e5, 7.74e3, 4.49e3], [1.31e-4, 2.28e-6, 5.20e-7]),
    printed((1.8, 16), [230_400, 7_200], [9.22e5, 1.55e4, 5.84e3], [2.62e-4, 4.56e-6, 1.04e-6]),
    printed((3.6, 2), [460_800, 115_200], [3.69e6, 2.48e5, 7.65e3], [5.25e-4, 6.36e-5, 1.66e-5]),
    printed((3.6, 4), [460_800, 57_600], [3.69e6, 1.24e5, 7.61e3], [5.25e-4, 3.31e-5, 8.31e-6]),
    printed((3.6, 8), [460_800, 28_800], [3.69e6, 6.19e4, 7.60e3], [5.25e-4, 1.73e-5, 4.16e-6]),
    printed((3.6, 16), [460_800, 14_400], [1.84e6, 3.10e4, 7.59e3], [5.25e-4, 9.13e-6, 2.08e-6]),
    printed((3.6, 32), [460_800, 7_200], [9.22e5, 1.55e4, 7.58e3], [5.25e-4, 4.84e-6, 1.04e-6]),
    printed((7.2, 16), [921_600, 28_800], [3.69e6, 6.19e4, 9.86e3], [1.05e-3, 1.83e-5, 4.16e-6]),
];

/// Returns the column with that peak (EFLOP) and density, either as printed or worked out by the same rules. `None` for
/// a density that is not among [`DENSITIES`].
pub fn column(peak: f64, density: u64) -> Option<Column> {
    let is_it = |column: &&Column| column.peak == peak && column.density == density;
    PRINTED.iter().find(is_it).copied().or_else(|| worked_out(peak, density))
}

fn worked_out(peak: f64, density: u64) -> Option<Column> {
    let (_, processor) = *PROCESSORS.iter().find(|(known, _)| *known == density)?;
    let gpus = (peak * GPUS_OF_EXAFLOP).round();
    let processors = gpus / density as f64;
    let nodes = processors / 2.0;
    let (files, at, growth) = FILES;
    let doublings = ((gpus * PEAKS[0] + processors * PEAKS[1]) / at).log2();
    Some(Column {
        peak,
        density,
        gpus: gpus as u64,
        nodes: nodes as u64,
        links: (LINKS[0] * gpus).min(LINKS[1] * processors),
        disks: DISK * nodes,
        files: files * growth.powf(doublings),
        failures: [FAILURES[0] * gpus, processor * processors, FAILURES[1] * nodes],
    })
}

impl Column {
    /// Returns this column as a machine whose name states the peak and the density.
    pub fn machine(&self) -> Machine {
        let nodes = self.nodes as f64;
        let store = |rate: f64| Some(Store { write: rate, read: rate });
        let [gpu, processor, node] = self.failures;
        Machine {
            name: format!("ics19-{}ef-{}", self.peak, self.density),
            nodes: self.nodes,
            gpus: self.gpus / self.nodes,
            state: self.gpus as f64 / nodes * GPU_MEMORY,
            links: vec![(1, self.links * GB / nodes)],
            at_once: u64::MAX,
            capture: Capture::Blocking,
            memory: None,
            network: NETWORK,
            scheme: Scheme::None,
            local: store(self.disks * GB / nodes),
            global: store(self.files * GB),
            volume: Volume::WHOLE,
            is_behind: false,
            slowdown: 0.0,
            relaunch: 0.0,
            failures: Failures {
                process: (gpu + processor) / nodes,
                reboot: node / nodes,
                loss: 0.0,
                system: SYSTEM_FAILURES,
            },
            site: Site::default(),
        }
    }

    /// Returns this column with GPUs that fail `times` times as often.
    pub fn gpus_failing(mut self, times: f64) -> Column {
        self.failures[0] *= times;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks every number against its printed form.
    #[test]
    fn columns_are_worked_out_as_the_paper_prints_them() {
        for printed in &PRINTED {
            let ours = worked_out(printed.peak, printed.density).expect("a density of the paper");
            assert_eq!((ours.gpus, ours.nodes), (printed.gpus, printed.nodes), "{printed:?}");
            let numbers = |column: &Column| {
                let rates = [column.links, column.disks, column.files].into_iter().chain(column.failures);
                rates.map(|number| format!("{number:.2e}")).collect::<Vec<_>>()
            };
            assert_eq!(numbers(&ours), numbers(printed), "{} EFLOP, {}", printed.peak, printed.density);
        }
    }

    /// Checks the row of totals, which is rounded, too.
    #[test]
    fn failures_add_up_to_the_printed_totals() {
        let totals = [6.72e-5, 1.34e-4, 2.68e-4, 6.05e-4, 5.67e-4, 5.47e-4, 5.36e-4, 5.31e-4, 1.07e-3];
        for (column, total) in PRINTED.iter().zip(totals) {
            let machine = column.machine();
            let ours = machine.failures.total(machine.nodes);
            assert!((ours / total - 1.0).abs() < 0.005, "{}: {ours}, printed {total}", machine.name);
        }
    }

    #[test]
    fn there_is_a_column_for_each_peak_and_density_and_no_other_density() {
        for (peak, density) in PEAKS_EXAFLOP.into_iter().flat_map(|peak| DENSITIES.map(|density| (peak, density))) {
            let found = column(peak, density).expect("one");
            assert_eq!(found.nodes * density * 2, found.gpus);
        }
        assert_eq!(column(3.6, 16), Some(PRINTED[6]));
        assert_eq!(column(3.6, 3), None);
    }

    #[test]
    fn only_gpus_fail_more_often() {
        let [once, often] = [1.0, 50.0].map(|times| PRINTED[6].gpus_failing(times).machine());
        let more = (often.failures.process - once.failures.process) * once.nodes as f64;
        assert!((more - 49.0 * 5.25e-4).abs() < 1e-9, "{more}");
        assert_eq!(once.failures.reboot, often.failures.reboot);
    }
}
