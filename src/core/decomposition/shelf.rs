//! What lies in the cells of an array, on the ranks that own them: parts of all ranks, sent there to be looked at together.
//!
//! ```text
//!   rank          for each part and each cell that it touches: what is in the cell      to the owner of the cell
//!   owner         over 1,024 parts in a cell: cuts it into 64 and sends on what lies in each    to the owners of the pieces
//! ```

use super::cells::Cells;
use super::{Cuboid, DIMS, Parts};
use crate::base::Rank;
use crate::format::numbers;
use std::collections::{BTreeMap, HashMap};
use xxhash_rust::xxh3::xxh3_64;

/// Parts in a cell before it is cut.
const PARTS_MAX: usize = 1024;
/// Pieces that it is cut into.
const PIECES: usize = 64;
/// How many pieces of a cell a part in it lies in at most, on average, for the cell to be cut.
const SPREAD: usize = 4;
/// Bytes of a post, about: more parts go into several.
const POST_BYTES: usize = 64 << 10;

/// Something that a rank has of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// What it is to whoever looks at it.
    pub side: Side,
    /// The rank.
    pub rank: Rank,
    /// Whose part it is: the rank, or the old one whose shard the rank reads.
    pub of: Rank,
    /// The place of the part among those that it is one of.
    pub number: u32,
    /// As much of it as is in the cell.
    pub cuboid: Cuboid,
}

/// What somebody has to do with elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// They are there.
    Has,
    /// They are on a tier that all ranks can read; the rank looks after them.
    Shared,
    /// They are to be there.
    Wants,
}

impl Side {
    fn code(self) -> u64 {
        match self {
            Side::Has => 0,
            Side::Wants => 1,
            Side::Shared => 2,
        }
    }

    fn of_code(code: u64) -> Option<Side> {
        [Side::Has, Side::Wants, Side::Shared].into_iter().find(|side| side.code() == code)
    }
}

/// One post: a cell, and what some ranks have of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Post {
    /// The cell.
    pub cell: Cuboid,
    /// What is in it.
    pub parts: Vec<Placed>,
}

impl Post {
    /// It as bytes, for arrays of so many dimensions.
    pub fn encode(posts: &[Post], dims: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Post { cell, parts } in posts {
            cell.put(dims, &mut bytes);
            numbers::put(&mut bytes, parts.len() as u64);
            for Placed { side, rank, of, number, cuboid } in parts {
                numbers::put(&mut bytes, u64::from(rank.0) << 2 | side.code());
                numbers::put(&mut bytes, numbers::from_step(i64::from(of.0) - i64::from(rank.0)));
                numbers::put(&mut bytes, u64::from(*number));
                cuboid.put(dims, &mut bytes);
            }
        }
        bytes
    }

    /// What the bytes say; `None` if they were cut or are not from [`Post::encode`].
    pub fn decode(mut bytes: &[u8], dims: usize) -> Option<Vec<Post>> {
        let mut posts = Vec::new();
        while !bytes.is_empty() {
            let cell = Cuboid::take(dims, &mut bytes)?;
            let count = usize::try_from(numbers::take(&mut bytes)?).ok().filter(|count| *count <= bytes.len())?;
            let mut parts = Vec::with_capacity(count);
            for _ in 0..count {
                let first = numbers::take(&mut bytes)?;
                let rank = Rank(u32::try_from(first >> 2).ok()?);
                let side = Side::of_code(first & 3)?;
                let step = numbers::to_step(numbers::take(&mut bytes)?);
                let of = Rank(u32::try_from(i64::from(rank.0).checked_add(step)?).ok()?);
                let number = u32::try_from(numbers::take(&mut bytes)?).ok()?;
                let cuboid = Cuboid::take(dims, &mut bytes).filter(|own| cell.contains(own) && !own.is_empty())?;
                parts.push(Placed { side, rank, of, number, cuboid });
            }
            posts.push(Post { cell, parts });
        }
        Some(posts)
    }
}

/// What a rank sends whom: parts, cell by cell. `parts` are whole ones.
pub fn posts(cells: &Cells, dims: usize, parts: impl IntoIterator<Item = Placed>) -> Vec<(Rank, Vec<u8>)> {
    let mut by_cell: BTreeMap<u64, Vec<Placed>> = BTreeMap::new();
    for part in parts {
        cells.touched(&part.cuboid, |cell| {
            if let Some(cuboid) = cells.cuboid(cell).common(&part.cuboid) {
                by_cell.entry(cell).or_default().push(Placed { cuboid, ..part });
            }
        });
    }
    let posts = by_cell.into_iter().map(|(cell, parts)| (cells.owner(cell), Post { cell: cells.cuboid(cell), parts }));
    bundled(posts, dims)
}

/// The parts of one rank, of which it has everything itself.
pub fn all_of(parts: &Parts, side: Side, rank: Rank, of: Rank) -> impl Iterator<Item = Placed> + '_ {
    let numbered = (0..).zip(parts.own()).filter(|(_, own)| !own.is_empty());
    numbered.map(move |(number, own)| Placed { side, rank, of, number, cuboid: *own })
}

/// Bundles of posts to the same ranks, of a bounded length.
fn bundled(posts: impl Iterator<Item = (Rank, Post)>, dims: usize) -> Vec<(Rank, Vec<u8>)> {
    let (mut open, mut bundles): (BTreeMap<Rank, Vec<u8>>, Vec<_>) = (BTreeMap::new(), Vec::new());
    // As many of a cell as fit into a bundle: a number takes ten bytes at most.
    let most = (POST_BYTES / (20 * dims + 30)).max(1);
    for (to, Post { cell, parts }) in posts {
        let some: Vec<&[Placed]> = if parts.is_empty() { vec![&[]] } else { parts.chunks(most).collect() };
        for parts in some {
            let bundle = open.entry(to).or_default();
            bundle.extend(Post::encode(&[Post { cell, parts: parts.to_vec() }], dims));
            if bundle.len() > POST_BYTES {
                bundles.push((to, std::mem::take(bundle)));
            }
        }
    }
    bundles.extend(open.into_iter().filter(|(_, bundle)| !bundle.is_empty()));
    bundles
}

/// What lies in a cell.
#[derive(Clone, Debug)]
enum Held {
    /// These; with so many it was tried to cut it.
    Parts(Vec<Placed>, usize),
    /// It was cut, and what comes is sent on.
    Cut,
}

/// One rank's cells, and what lies in them.
#[derive(Clone, Debug)]
pub struct Shelf {
    dims: usize,
    ranks: u32,
    held: HashMap<Cuboid, Held>,
}

impl Shelf {
    /// A rank that has got nothing yet.
    pub fn new(cells: &Cells, dims: usize) -> Shelf {
        Shelf { dims, ranks: cells.ranks(), held: HashMap::new() }
    }

    /// Takes a bundle of posts, and hands each part that comes to `look` with those that are in its cell already; a bundle that is none is `None`.
    /// Returns what is to be sent on.
    pub fn take(&mut self, bytes: &[u8], mut look: impl FnMut(&Placed, &[Placed])) -> Option<Vec<(Rank, Vec<u8>)>> {
        let mut onward = Vec::new();
        for Post { cell, parts } in Post::decode(bytes, self.dims)? {
            self.place(cell, parts, &mut look, &mut onward);
        }
        Some(bundled(onward.into_iter(), self.dims))
    }

    fn place(
        &mut self,
        cell: Cuboid,
        parts: Vec<Placed>,
        look: &mut impl FnMut(&Placed, &[Placed]),
        onward: &mut Vec<(Rank, Post)>,
    ) {
        let ranks = self.ranks;
        let held = self.held.entry(cell).or_insert_with(|| Held::Parts(Vec::new(), 0));
        let Held::Parts(there, tried) = held else {
            onward.extend(pieces(&cell, &parts, ranks).filter(|(_, post)| !post.parts.is_empty()));
            return;
        };
        for part in parts {
            look(&part, there);
            there.push(part);
        }
        if there.len() > PARTS_MAX && there.len() >= 2 * *tried {
            let cut: Vec<(Rank, Post)> = pieces(&cell, there, ranks).collect();
            let parts: usize = cut.iter().map(|(_, post)| post.parts.len()).sum();
            // Where most parts lie in most pieces, as ones that all want the same do, cutting spreads nothing.
            if parts <= SPREAD * there.len() {
                onward.extend(cut);
                *held = Held::Cut;
            } else {
                *tried = there.len();
            }
        }
    }

    /// Cells that were not cut, and what lies in each.
    pub fn cells(&self) -> impl Iterator<Item = (&Cuboid, &[Placed])> {
        self.held.iter().filter_map(|(cell, held)| match held {
            Held::Parts(parts, _) => Some((cell, &parts[..])),
            Held::Cut => None,
        })
    }

    /// Has anything come for this cell?
    pub fn knows(&self, cell: &Cuboid) -> bool {
        self.held.contains_key(cell)
    }
}

/// A cell in pieces, the owner of each, and what lies in it.
fn pieces<'p>(cell: &Cuboid, parts: &'p [Placed], ranks: u32) -> impl Iterator<Item = (Rank, Post)> + use<'p> {
    cell.cut(PIECES).into_iter().map(move |piece| {
        let inside = |part: &Placed| Some(Placed { cuboid: piece.common(&part.cuboid)?, ..*part });
        let parts = parts.iter().filter_map(inside).collect();
        let mut bytes = Vec::new();
        piece.put(DIMS, &mut bytes);
        (Rank((xxh3_64(&bytes) % u64::from(ranks)) as u32), Post { cell: piece, parts })
    })
}
