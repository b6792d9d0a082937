//! The drawing: each machine as packages, NUMA nodes, caches and cores, with the ranks on them.
//!
//! [`plan`] says what is drawn, [`panel`] says how large it is and where it is, [`canvas`] writes it, and [`colour`] gives
//! each rank its colour.
#![forbid(unsafe_code)]

mod canvas;
mod colour;
mod panel;
mod plan;

use super::gather::Snapshot;
use super::hosts::{hosts, summary};
use bivouac_core::affinity::machine::Machine;
use canvas::{Anchor, Canvas, Type, fitted};
use panel::Panel;

/// The maximum number of machines in one drawing.
const MACHINES_MAX: usize = 32;
/// The margin around the drawing.
const MARGIN: f64 = 18.0;
/// The minimum width of a drawing: legends need some room.
const WIDTH_MIN: f64 = 760.0;

/// The text of an SVG document.
pub struct Drawing {
    /// The document.
    pub text: String,
    /// What was left out, in words.
    pub notes: Vec<String>,
}

/// A title and the machines below it.
struct Section {
    title: String,
    panels: Vec<Panel>,
}

/// Draws this machine, or the machines of all snapshots.
pub fn draw(here: Option<&Machine>, snapshots: &[Snapshot]) -> Drawing {
    let (mut sections, mut left, mut notes) = (Vec::new(), MACHINES_MAX, Vec::new());
    if let Some(machine) = here {
        let panels = vec![Panel::new(summary(machine), plan::plan(machine, &[]))];
        sections.push(Section { title: "this machine".to_owned(), panels });
    }
    for snapshot in snapshots {
        let hosts = hosts(snapshot);
        let shown = hosts.len().min(left);
        left -= shown;
        if shown < hosts.len() {
            let more = hosts.len() - shown;
            notes.push(format!(
                "{}: {more} more machines are not drawn, because at most {MACHINES_MAX} are",
                snapshot.title
            ));
        }
        let panels = hosts.iter().take(shown).map(|host| {
            let title = format!("machine of {}: {}", host.who(), summary(host.machine));
            Panel::new(title, plan::plan(host.machine, &host.ranks))
        });
        sections.push(Section { title: snapshot.title.clone(), panels: panels.collect() });
    }
    let width = sections
        .iter()
        .flat_map(|section| &section.panels)
        .map(|panel| panel.draw(&mut Canvas::default(), 0.0, 0.0, 0.0).0)
        .fold(WIDTH_MIN, f64::max);
    let mut canvas = Canvas::default();
    let mut y = MARGIN;
    for section in &sections {
        canvas.words(MARGIN, y + 16.0, Anchor::Start, Type::bold(16.0), &fitted(&section.title, width, 17.0));
        y += 30.0;
        for panel in &section.panels {
            y += panel.draw(&mut canvas, MARGIN, y, width).1 + 16.0;
        }
        if section.panels.is_empty() {
            canvas.words(MARGIN, y + 12.0, Anchor::Start, Type::faint(11.5), "no readable record");
            y += 26.0;
        }
    }
    for note in &notes {
        canvas.words(MARGIN, y + 12.0, Anchor::Start, Type::faint(11.5), &fitted(note, width, 11.5));
        y += 18.0;
    }
    Drawing { text: canvas.finish(width + 2.0 * MARGIN, y + MARGIN - 8.0), notes }
}
