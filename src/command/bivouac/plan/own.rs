//! What a plan is made for: a machine given by its name or by measurements, and the failures that were seen on it.

use super::{Args, percent};
use bivouac_core::Level;
use bivouac_core::format::profile::{FILE_MAX, Profile};
use bivouac_core::planner::estimate::{Seen, after, of_ranks, within};
use bivouac_core::planner::{Failures, Machine, presets, profiled};
use bivouac_core::policy::intervals::{Best, LevelCosts, efficiency};
use bivouac_core::tier::run_directory::RunDirectory;
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What is known of the machine.
pub struct Known {
    /// The machine before options change it.
    pub machine: Machine,
    /// The known machine that supplies what a profile lacks.
    preset: String,
    profile: Option<Profile>,
    /// What was assumed about failures before any were seen, and what was seen.
    seen: Option<(Failures, Seen)>,
    /// What neither an option nor a profile says, and the options that say it.
    guessed: Vec<&'static str>,
}

/// The part of the answer that depends on measurements.
#[derive(Serialize)]
pub struct View {
    /// The share of the time that is work if failures are as frequent, and as rare, as the 90 % range allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    efficiency_90_percent: Option<[f64; 2]>,
    /// The number of failures that were seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    failures_seen: Option<u64>,
    /// The node-days in which they were seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_days_seen: Option<f64>,
    /// Values that the profile does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_measured: Vec<&'static str>,
    #[serde(skip)]
    preset: String,
}

impl Known {
    /// What the options say about the machine.
    ///
    /// # Errors
    /// Something in the options cannot be used; the error says what.
    pub fn of(args: &Args) -> Result<Known, String> {
        let standard = if args.profile.is_some() { "laptop" } else { "node-8gpu" };
        let preset = args.preset.as_deref().unwrap_or(standard);
        let mut machine = presets::named(preset).ok_or_else(|| {
            let names: Vec<String> = presets::all().into_iter().map(|machine| machine.name).collect();
            format!("no machine is called {preset:?}: choose one of {}", names.join(", "))
        })?;
        let profile = args.profile.as_deref().map(read).transpose()?;
        let mut seen = None;
        if let Some((profile, path)) = profile.as_ref().zip(args.profile.as_ref()) {
            machine.name = path.display().to_string();
            machine.nodes = profile.nodes;
            machine.state = profile.state.unwrap_or(machine.state);
            // A profile does not say how much memory a node has, and the known machine's memory would be wrong.
            machine.memory = None;
            machine.failures = of_ranks(profile.ranks, profile.nodes);
            seen = Some(profile.failures.as_ref().map_or_else(Seen::default, Seen::told));
        }
        if let Some(directory) = &args.run_directory {
            let attempts = RunDirectory::at(directory).read_attempts().map_err(|error| error.to_string())?;
            if attempts.is_empty() {
                return Err(format!(
                    "{} has no attempts: name the run directory of a job that `bivouac run` started",
                    directory.display()
                ));
            }
            seen = Some(Seen::of(&attempts));
        }
        let mut guessed = Vec::new();
        if let Some(profile) = &profile {
            guessed.extend(args.relaunch.is_none().then_some("how long a relaunch takes (--relaunch)"));
            let is_known = args.state.is_some() || profile.state.is_some();
            guessed.extend((!is_known).then_some("what a node saves (--state)"));
        }
        let seen = seen.map(|seen| (machine.failures, seen));
        if let Some((prior, seen)) = &seen {
            machine.failures = after(prior, seen);
        }
        Ok(Known { machine, preset: preset.to_owned(), profile, seen, guessed })
    }

    /// What levels cost on `machine`, which is this machine as changed by options.
    pub fn levels(&self, machine: &Machine) -> Vec<(Level, LevelCosts)> {
        match &self.profile {
            Some(profile) => profiled::levels(profile, machine).levels,
            None => machine.levels(),
        }
    }

    /// What is to be said about a plan. `is_told`: options say how often the job fails, so it is not estimated.
    pub fn view(&self, machine: &Machine, found: &Best, is_told: bool) -> View {
        let seen = self.seen.as_ref().filter(|_| !is_told);
        let with = |failures: Failures| {
            let levels = self.levels(&Machine { failures, ..machine.clone() });
            efficiency(
                &levels.into_iter().map(|(_, costs)| costs).collect::<Vec<_>>(),
                &found.pattern,
                machine.conduct(),
            )
        };
        let missing = self.profile.as_ref().map(|profile| profiled::levels(profile, machine).missing);
        let mut not_measured: Vec<&'static str> = missing.into_iter().flatten().collect();
        not_measured.extend(&self.guessed);
        View {
            efficiency_90_percent: seen.map(|(prior, seen)| {
                let [rare, frequent] = within(prior, seen).map(with);
                [frequent, rare]
            }),
            failures_seen: seen.map(|(_, seen)| seen.process + seen.node + seen.system),
            node_days_seen: seen.map(|(_, seen)| seen.node_seconds / 86_400.0),
            not_measured,
            preset: self.preset.clone(),
        }
    }
}

/// Reads a profile; a file that is too long is not read to its end.
fn read(path: &Path) -> Result<Profile, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("profile {}: {error}", path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| wrong(&error))?;
    file.take(FILE_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| wrong(&error))?;
    let text = String::from_utf8(bytes).map_err(|_| wrong(&"it is not UTF-8 text"))?;
    Profile::decode(&text).map_err(|error| wrong(&error))
}

impl View {
    /// The view as text for people; empty if nothing was measured.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let (Some([least, most]), Some(failures), Some(days)) =
            (self.efficiency_90_percent, self.failures_seen, self.node_days_seen)
        {
            text += &format!(
                "{failures} failures were seen in {days:.1} node-days: with 90 % certainty {} to {} of the time is work with these intervals.\n",
                percent(least),
                percent(most)
            );
        }
        if !self.not_measured.is_empty() {
            text += &format!("Not measured, and taken from {}: {}.\n", self.preset, self.not_measured.join(", "));
        }
        text
    }
}
