//! Events as a trace that Perfetto and `chrome://tracing` draw. Each rank has a line for its calls, one for transfers from its GPU, and one
//! for each tier; the root's reports appear above them as instants. Pure.
#![forbid(unsafe_code)]

use super::gather::Gathered;
use bivouac_core::format::events::{Event, What};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The lines of a rank before those of its tiers.
const LINES: [&str; 3] = ["verdicts", "calls", "device to host"];

/// A span, or an instant.
struct Mark {
    name: String,
    line: usize,
    seconds: f64,
    arguments: Value,
}

/// The trace, in the Trace Event Format.
pub fn trace(gathered: &Gathered) -> String {
    let all = gathered.events.values().flat_map(BTreeMap::values).flatten();
    let zero = all.clone().map(|event| event.unix - event.what.seconds()).fold(f64::INFINITY, f64::min);
    let mut events = Vec::new();
    for (number, ((group, job), ranks)) in gathered.events.iter().enumerate() {
        let group = gathered.called(group, job);
        for (rank, of_rank) in ranks {
            // A trace identifies its processes by numbers.
            let process = number as u64 * 1_000_000 + u64::from(*rank);
            let mut tiers: Vec<String> = Vec::new();
            let marks: Vec<(f64, Mark)> =
                of_rank.iter().filter_map(|event| Some((event.unix, mark(event, &mut tiers)?))).collect();
            events.push(named("process_name", process, 0, &format!("{group} rank {rank}")));
            let lines = LINES.iter().copied().chain(tiers.iter().map(String::as_str));
            events.extend(lines.enumerate().map(|(line, name)| named("thread_name", process, line, name)));
            events.extend(marks.into_iter().map(|(unix, mark)| {
                let Mark { name, line, seconds, arguments } = mark;
                let at = (unix - seconds - zero) * 1e6;
                match seconds > 0.0 {
                    true => json!({"name": name, "cat": "bivouac", "ph": "X", "pid": process, "tid": line, "ts": at,
                        "dur": seconds * 1e6, "args": arguments}),
                    false => json!({"name": name, "cat": "bivouac", "ph": "i", "s": "p", "pid": process, "tid": line,
                        "ts": at, "args": arguments}),
                }
            }));
        }
    }
    json!({"traceEvents": events, "displayTimeUnit": "ms"}).to_string()
}

fn named(what: &str, process: u64, line: usize, name: &str) -> Value {
    json!({"name": what, "ph": "M", "pid": process, "tid": line, "args": {"name": name}})
}

fn mark(event: &Event, tiers: &mut Vec<String>) -> Option<Mark> {
    let seconds = event.what.seconds();
    let (name, line, arguments) = match &event.what {
        What::Opened(_) => ("opened".to_owned(), 0, json!({"run": event.run})),
        What::Captured { name, version, operation, bytes, .. } => {
            let arguments = json!({"series": name, "version": version, "operation": operation, "bytes": bytes});
            (format!("checkpoint {version}"), 1, arguments)
        }
        What::Restored { name, version, tier, bytes, elect_seconds, .. } => {
            let arguments = json!({"series": name, "tier": tier, "bytes": bytes, "elect_s": elect_seconds});
            (format!("restore {version}"), 1, arguments)
        }
        What::Landed { version, bytes, .. } => (format!("version {version}"), 2, json!({"bytes": bytes})),
        What::Written { operation, tier, bytes, .. } => {
            let known = tiers.iter().position(|known| known == tier).unwrap_or_else(|| {
                tiers.push(tier.clone());
                tiers.len() - 1
            });
            (format!("write {operation}"), LINES.len() + known, json!({"operation": operation, "bytes": bytes}))
        }
        What::Failed { tier, reason } => (format!("failed on {tier}"), 0, json!({"reason": reason})),
        What::Committed { name, version, level, .. } => {
            (format!("{level} {version}"), 0, json!({"series": name, "version": version}))
        }
        What::Refused { name, version, level, reason, .. } => {
            (format!("refused {level} {version}"), 0, json!({"series": name, "reason": reason}))
        }
        What::Exit { reason } => ("exit".to_owned(), 0, json!({"reason": reason})),
        What::Warned { text, .. } => ("warning".to_owned(), 0, json!({"text": text})),
        What::Closed => ("closed".to_owned(), 0, json!({})),
        What::Memory { .. } | What::Missing { .. } | What::Unknown => return None,
    };
    Some(Mark { name, line, seconds, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_end_where_their_events_say() {
        let written = What::Written { operation: 4, tier: "global".into(), bytes: 9, seconds: 0.5 };
        let captured = What::Captured { name: "t".into(), version: 2, operation: 4, bytes: 9, seconds: 0.25 };
        let events = vec![
            Event { unix: 10.0, run: 1, what: captured },
            Event { unix: 11.0, run: 1, what: written },
            Event { unix: 11.5, run: 1, what: What::Closed },
        ];
        let gathered = Gathered {
            events: [(("world".to_owned(), "heat".to_owned()), [(3, events)].into())].into(),
            ..Gathered::default()
        };
        let trace: Value = serde_json::from_str(&trace(&gathered)).expect("JSON");
        let of = |name: &str| {
            let events = trace["traceEvents"].as_array().expect("a list");
            let found = events.iter().find(|event| event["name"] == name).expect("it is there");
            (
                found["ts"].as_f64().expect("a number"),
                found["dur"].as_f64(),
                found["pid"].as_u64(),
                found["tid"].as_u64(),
            )
        };
        assert_eq!(of("checkpoint 2"), (0.0, Some(250_000.0), Some(3), Some(1)));
        assert_eq!(of("write 4"), (750_000.0, Some(500_000.0), Some(3), Some(3)));
        assert_eq!(of("closed"), (1_750_000.0, None, Some(3), Some(0)));
    }
}
