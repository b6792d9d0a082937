//! What it costs to decompose an array over very many ranks, and to plan a load of it on other ranks: records, posts, and which
//! rank has most of them.
//!
//! Runs the pure code alone, with all ranks in one process: whatever ranks would send each other is handed from one to another in rounds.
//! Nothing is timed. Prints one JSON object per line:
//!
//! ```text
//! cargo bench -p bivouac-core --no-default-features --bench decomposition | tee benches/results/decomposition.jsonl
//! ```
//!
//! * `record`: bytes of the records of all ranks per box, and of the rank that has most per box.
//! * `decompose`: posts to the owners of cells, including those that owners send on among themselves.
//! * `match`: the same for a load on three quarters as many ranks, about what readers have and what ranks want.
//! * `hand out`: posts in which owners then tell ranks about what these want.
//! * `requests`: posts in which ranks then ask readers, if no rank can itself read what another one reads.
//! * `messages`: the same sums, for few ranks up to many.
//!
//! A rank's posts to itself are no messages and are not counted; each of the others is acknowledged by one more message. The bytes exclude
//! what surrounds a post (its number, the ranks). Reductions are not counted here: `benches/results/scaling_messages.csv` has them.
#![forbid(unsafe_code)]

use bivouac_core::base::Rank;
use bivouac_core::decomposition::cells::{Cells, Sums};
use bivouac_core::decomposition::matching::{Piece, bundles, joined, matched, unbundled};
use bivouac_core::decomposition::proof::Owner;
use bivouac_core::decomposition::shelf::{Placed, Shelf, Side, all_of, posts};
use bivouac_core::decomposition::{Boxes, Parts, Record, Rule};
use bivouac_core::recovery::homes::homed;
use clap::Parser;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Parser)]
struct Options {
    /// Number of ranks in the large cases.
    #[arg(long, default_value_t = 1_000_000)]
    ranks: u32,
    /// Maximum number of ranks in the table of messages.
    #[arg(long, default_value_t = 4096)]
    table: u32,
    /// Measure only these cuts.
    #[arg(long, value_delimiter = ',')]
    cuts: Vec<Cut>,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// How an array is cut. Sizes do not divide evenly, so that the parts differ and the cells do not coincide with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Cut {
    /// Along the slowest dimension.
    Slabs,
    /// In three dimensions.
    Boxes,
    /// Patches of an adaptive mesh, four per rank, all in one corner of its array.
    Corner,
    /// The same, with a free layer of elements after each layer of patches. One of the free layers is a sheet of the last rank,
    /// through the whole array.
    Sheet,
}

/// Patches per rank, and elements along their sides.
const PATCHES: u64 = 4;
const PATCH: u64 = 16;

impl Cut {
    const ALL: [Cut; 4] = [Cut::Slabs, Cut::Boxes, Cut::Corner, Cut::Sheet];

    fn name(self) -> &'static str {
        match self {
            Cut::Slabs => "slabs",
            Cut::Boxes => "boxes",
            Cut::Corner => "corner",
            Cut::Sheet => "sheet",
        }
    }

    /// The array that was first cut for `of` ranks, on this many ranks.
    fn on(self, ranks: u32, of: u32) -> Laid {
        Laid { cut: self, ranks, of, grid: grid(ranks), grid_of: grid(of) }
    }
}

/// An array on ranks.
#[derive(Clone, Copy)]
struct Laid {
    cut: Cut,
    ranks: u32,
    of: u32,
    grid: [u64; 3],
    grid_of: [u64; 3],
}

impl Laid {
    /// A rank's parts of the array.
    fn parts(&self, rank: u32) -> Parts {
        let (rank, ranks, of) = (u64::from(rank), u64::from(self.ranks), u64::from(self.of));
        let boxes = match self.cut {
            Cut::Slabs => {
                let rows = 4 * of + of / 3;
                let (first, last) = share(rows, rank, ranks);
                Boxes::of([rows, 512, 512]).own([first, 0, 0], [last - first, 512, 512])
            }
            Cut::Boxes => {
                let (shape, grid) = (self.grid_of.map(|side| 64 * side + side / 3), self.grid);
                let at = [rank / (grid[1] * grid[2]), rank / grid[2] % grid[1], rank % grid[2]];
                let sides: [(u64, u64); 3] = std::array::from_fn(|dim| share(shape[dim], at[dim], grid[dim]));
                Boxes::of(shape).own(sides.map(|(first, _)| first), sides.map(|(first, last)| last - first))
            }
            Cut::Corner | Cut::Sheet => {
                let patches = PATCHES * of;
                let side = (1..).find(|side: &u64| side.pow(3) >= patches).unwrap_or(1);
                // Fifty times as wide as the corner in which it is refined.
                let level = Boxes::of([50 * side * PATCH; 3]).sparse();
                let (first, last) = share(patches, rank, ranks);
                let free = u64::from(self.cut == Cut::Sheet);
                let level = (first..last).fold(level, |level, patch| {
                    let at = [patch / (side * side), patch / side % side, patch % side];
                    level.own([at[0] * (PATCH + free), at[1] * PATCH, at[2] * PATCH], [PATCH; 3])
                });
                match self.cut == Cut::Sheet && rank + 1 == ranks {
                    true => level.own([PATCH, 0, 0], [1, 50 * side * PATCH, 50 * side * PATCH]),
                    false => level,
                }
            }
        };
        boxes.check().expect("inside").parts().clone()
    }
}

/// The first element of the `index`-th of this many shares of `of` elements, and the one after its last.
fn share(of: u64, index: u64, shares: u64) -> (u64, u64) {
    (of * index / shares, of * (index + 1) / shares)
}

/// This many boxes in three dimensions, as close to a cube as the factors allow.
fn grid(ranks: u32) -> [u64; 3] {
    let ranks = u64::from(ranks);
    let factors =
        |of: u64| (1..=of).take_while(move |side| side * side <= of).filter(move |side| of.is_multiple_of(*side));
    let all = factors(ranks).flat_map(|a| factors(ranks / a).map(move |b| [a, b, ranks / a / b]));
    let all = all.chain(factors(ranks).flat_map(|b| factors(ranks / b).map(move |a| [ranks / a / b, a, b])));
    all.min_by_key(|sides| sides.iter().sum::<u64>()).unwrap_or([1, 1, ranks])
}

/// What ranks have sent and received.
struct Traffic {
    sent: Vec<u32>,
    posts: Vec<u32>,
    bytes: Vec<u64>,
    /// The longest chain of posts, each of which was sent on because of the one before it.
    hops: u32,
}

impl Traffic {
    fn of(ranks: u32) -> Traffic {
        let none = || vec![0; ranks as usize];
        Traffic { sent: none(), posts: none(), bytes: vec![0; ranks as usize], hops: 0 }
    }

    fn count(&mut self, from: u32, to: Rank, body: &[u8]) {
        if from != to.0 {
            self.sent[from as usize] += 1;
            self.posts[to.0 as usize] += 1;
            self.bytes[to.0 as usize] += body.len() as u64;
        }
    }

    fn row(&self, figure: &str, cut: Cut, ranks: u32) -> Value {
        let most = |of: &[u32]| of.iter().max().copied().unwrap_or(0);
        let busiest = self.bytes.iter().enumerate().max_by_key(|(_, bytes)| **bytes).unwrap_or((0, &0));
        let all: u64 = self.bytes.iter().sum();
        json!({
            "figure": figure, "cut": cut.name(), "ranks": ranks,
            "busiest_rank": busiest.0, "busiest_bytes": busiest.1, "busiest_posts": most(&self.posts),
            "mean_bytes": round(all as f64 / f64::from(ranks)),
            "mean_posts": round(self.posts.iter().map(|posts| f64::from(*posts)).sum::<f64>() / f64::from(ranks)),
            "sent_most": most(&self.sent), "root_posts": self.posts[0], "root_bytes": self.bytes[0], "hops": self.hops,
            "target": "busiest <= 262144 bytes; the root as any other",
        })
    }
}

fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// A post in transit.
type Mail = (u32, Rank, Vec<u8>);

/// Delivers posts to their recipients, and then the posts that these send on, until none is in transit.
fn deliver(mut mail: Vec<Mail>, traffic: &mut Traffic, mut on_post: impl FnMut(Rank, &[u8]) -> Vec<(Rank, Vec<u8>)>) {
    while !mail.is_empty() {
        traffic.hops += 1;
        let mut next = Vec::new();
        for (from, to, body) in mail {
            traffic.count(from, to, &body);
            next.extend(on_post(to, &body).into_iter().map(|(onward, body)| (to.0, onward, body)));
        }
        mail = next;
    }
}

fn sums(laid: &Laid) -> Sums {
    let ranks = laid.ranks;
    (0..ranks).map(|rank| Sums::of_rank(&laid.parts(rank), Rank(rank), ranks)).fold(Sums::default(), Sums::and)
}

/// Measures the records of all ranks.
fn record(cut: Cut, ranks: u32, sums: &Sums) -> Value {
    let (mut all, mut boxes, mut most) = (0u64, 0u64, 0f64);
    let laid = cut.on(ranks, ranks);
    for rank in 0..ranks {
        let parts = laid.parts(rank);
        let count = parts.own().len().max(1);
        let (decompositions, rules) = (vec![(sums.identity, parts)], [(0, Rule::On(0))].into());
        let record = Record { decompositions, rules, ..Record::default() };
        let bytes = record.encode().len();
        (all, boxes, most) = (all + bytes as u64, boxes + count as u64, most.max(bytes as f64 / count as f64));
    }
    json!({
        "figure": "record", "cut": cut.name(), "ranks": ranks, "boxes": boxes, "bytes_a_box": round(all as f64 / boxes as f64),
        "bytes_a_box_most": round(most), "target": "<= 64 bytes",
    })
}

/// Sends parts to the owners of cells, which look for overlaps, as `Session::decompose` has them sent.
fn decompose(cut: Cut, ranks: u32, sums: &Sums) -> Traffic {
    let laid = cut.on(ranks, ranks);
    let whole = laid.parts(0);
    let (cells, dims) = (Cells::new(&whole, sums, ranks), whole.dims());
    let mut mail = Vec::new();
    for rank in 0..ranks {
        let first = posts(&cells, dims, all_of(&laid.parts(rank), Side::Has, Rank(rank), Rank(rank)));
        mail.extend(first.into_iter().map(|(to, body)| (rank, to, body)));
    }
    let (mut traffic, mut owners) = (Traffic::of(ranks), BTreeMap::new());
    deliver(mail, &mut traffic, |to, body| {
        let owner = owners.entry(to).or_insert_with(|| Owner::new(&cells, dims));
        let taken = owner.take(body).expect("a post");
        assert_eq!(taken.overlap, None, "no two have the same");
        taken.onward
    });
    traffic
}

/// Sends the owners of cells what readers of the shards of `of` ranks have and what `ranks` ranks want. Counts this, what the owners then
/// tell the ranks, and what the ranks then ask readers for.
fn plan(cut: Cut, ranks: u32, of: u32) -> [Traffic; 3] {
    let (old, new) = (cut.on(of, of), cut.on(ranks, of));
    let whole = new.parts(0);
    let (cells, dims) = (Cells::new(&whole, &sums(&new), ranks), whole.dims());
    let mut mail = Vec::new();
    for rank in 0..ranks {
        let own = |side, parts: &Parts, of| all_of(parts, side, Rank(rank), Rank(of)).collect::<Vec<Placed>>();
        let mut placed: Vec<Placed> =
            homed(Rank(rank), of, ranks).flat_map(|shard| own(Side::Has, &old.parts(shard), shard)).collect();
        placed.extend(own(Side::Wants, &new.parts(rank), rank));
        mail.extend(posts(&cells, dims, placed).into_iter().map(|(to, body)| (rank, to, body)));
    }
    let (mut matching, mut shelves) = (Traffic::of(ranks), BTreeMap::new());
    deliver(mail, &mut matching, |to, body| {
        let shelf = shelves.entry(to).or_insert_with(|| Shelf::new(&cells, dims));
        shelf.take(body, |_, _| ()).expect("a post")
    });
    let (mut told, mut wanted, mut found) = (Traffic::of(ranks), 0u64, 0u64);
    told.hops = 1;
    let mut bodies: Vec<Vec<u8>> = vec![Vec::new(); ranks as usize];
    while let Some((owner, shelf)) = shelves.pop_first() {
        let matched = matched(&shelf);
        assert_eq!(matched.unmatched, None, "all is there once");
        (wanted, found) = (wanted + matched.wanted, found + matched.matched);
        for (to, pieces) in &matched.pieces {
            for bundle in bundles(pieces, dims) {
                told.count(owner.0, *to, &bundle);
                bodies[to.0 as usize].extend(bundle);
            }
        }
    }
    assert_eq!(wanted, found, "all that is wanted is there");
    let mut asked = Traffic::of(ranks);
    asked.hops = 1;
    for (rank, body) in (0..).zip(bodies) {
        let mut by_reader: BTreeMap<Rank, Vec<Piece>> = BTreeMap::new();
        for piece in joined(unbundled(&body, dims).expect("pieces")) {
            by_reader.entry(piece.reader).or_default().push(piece);
        }
        for (reader, pieces) in by_reader {
            bundles(&pieces, dims).iter().for_each(|bundle| asked.count(rank, reader, bundle));
        }
    }
    [matching, told, asked]
}

fn table(cut: Cut, most: u32) {
    for ranks in (1..).map(|power| 1u32 << power).take_while(|ranks| *ranks <= most) {
        let decomposed = decompose(cut, ranks, &sums(&cut.on(ranks, ranks)));
        let fewer = (3 * ranks).div_ceil(4);
        let plan = plan(cut, fewer, ranks);
        let most = |traffic: &[Traffic], ranks: u32| {
            let of = |rank: usize| traffic.iter().map(|one| one.posts[rank] + one.sent[rank]).sum::<u32>();
            (0..ranks as usize).map(of).max().unwrap_or(0)
        };
        let mean = |traffic: &[Traffic], ranks: u32| {
            let all: u64 = traffic.iter().flat_map(|one| &one.posts).map(|posts| u64::from(*posts)).sum();
            round(2.0 * all as f64 / f64::from(ranks))
        };
        let decomposed = [decomposed];
        let row = json!({
            "figure": "messages", "cut": cut.name(), "ranks": ranks, "decompose_mean": mean(&decomposed, ranks),
            "decompose_most": most(&decomposed, ranks), "onto": fewer, "plan_mean": mean(&plan, fewer),
            "plan_most": most(&plan, fewer),
        });
        println!("{row}");
    }
}

/// The peak memory of the process, in MiB.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok().map(|kib| kib / 1024)
}

fn main() {
    let options = Options::parse();
    let cuts = if options.cuts.is_empty() { Cut::ALL.to_vec() } else { options.cuts };
    println!("{}", json!({ "machine": std::env::consts::ARCH, "command": "cargo bench --bench decomposition" }));
    for cut in cuts {
        let ranks = options.ranks;
        let sums = sums(&cut.on(ranks, ranks));
        println!("{}", record(cut, ranks, &sums));
        let fewer = (3 * ranks).div_ceil(4);
        println!("{}", decompose(cut, ranks, &sums).row("decompose", cut, ranks));
        for (figure, traffic) in ["match", "hand out", "requests"].into_iter().zip(plan(cut, fewer, ranks)) {
            println!("{}", traffic.row(figure, cut, fewer));
        }
        table(cut, options.table);
        println!(
            "{}",
            json!({ "figure": "memory", "cut": cut.name(), "peak_mib": peak_mib(), "target": "<= 8192 MiB" })
        );
    }
}
