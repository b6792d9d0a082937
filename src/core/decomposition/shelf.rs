//! The content of an array's cells on the ranks that own them: parts of all ranks, which are sent there to be compared.
//!
//! ```text
//!   rank          for each part and each cell that it touches: what is in the cell      to the owner of the cell
//!   owner         over 1,024 parts in a cell: cuts it into 64 and sends on what lies in each    to the owners of the pieces
//!                 in layers, a new cell: that it exists                                 to the owner of the cell around it
//!                 in layers, what an existing cell contains of a part                   to the owner of the inner cell
//! ```
//!
//! In layers (`layers.rs`), parts of one cell are also compared in the cells inside it, as parts [above](Placed::is_above) those. The
//! elements that two parts have in common are examined in the one cell in which at least one of the parts is not above.

use super::cells::{Cells, hashed};
use super::{Cuboid, Parts};
use crate::base::Rank;
use crate::format::numbers;
use std::collections::{BTreeMap, HashMap};

/// The maximum number of parts in a cell before it is cut.
const PARTS_MAX: usize = 1024;
/// The number of pieces into which such a cell is cut.
const PIECES: usize = 64;
/// The maximum average number of pieces that a part in a cell may touch if the cell is to be cut.
const SPREAD: usize = 4;
/// The approximate length of a post in bytes. Longer content is split over several posts.
const POST_BYTES: usize = 64 << 10;

/// A part of a rank in a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Whether the rank has it or wants it.
    pub side: Side,
    /// The rank.
    pub rank: Rank,
    /// The rank whose part it is: the rank itself, or the old rank whose shard it reads.
    pub of: Rank,
    /// The place of the part among those of that rank.
    pub number: u32,
    /// The part lies in a larger cell, which sent it on to this cell.
    pub is_above: bool,
    /// The elements of the part that are in the cell.
    pub cuboid: Cuboid,
}

impl Placed {
    /// The elements that both parts have, if this cell compares them: if both are above, a larger cell does so.
    pub fn meets(&self, other: &Placed) -> Option<Cuboid> {
        if self.is_above && other.is_above { None } else { self.cuboid.common(&other.cuboid) }
    }

    /// This part restricted to another cell, if any of it lies there.
    fn within(&self, cell: &Cuboid) -> Option<Placed> {
        Some(Placed { cuboid: cell.common(&self.cuboid)?, ..*self })
    }
}

/// A rank's relation to elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The rank has them.
    Has,
    /// They are on a tier that all ranks can read; the rank looks after them.
    Shared,
    /// The rank wants them.
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

/// The place of parts: a cell, or a piece of one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// How often it was cut.
    pub cuts: u32,
    /// Its elements, including those beyond the end of the array.
    pub cuboid: Cuboid,
}

/// One post: a cell, and the parts that some ranks have in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Post {
    /// The cell.
    pub place: Place,
    /// The parts in it.
    pub parts: Vec<Placed>,
    /// Finer cells that exist and that the receiver does not know yet.
    pub inner: Vec<Cuboid>,
}

impl Post {
    fn of(place: Place, parts: Vec<Placed>) -> Post {
        Post { place, parts, inner: Vec::new() }
    }

    /// Posts as bytes, for arrays of this many dimensions.
    pub fn encode(posts: &[Post], dims: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Post { place, parts, inner } in posts {
            numbers::put(&mut bytes, u64::from(place.cuts) << 1 | u64::from(!inner.is_empty()));
            place.cuboid.put(dims, &mut bytes);
            numbers::put(&mut bytes, parts.len() as u64);
            for Placed { side, rank, of, number, is_above, cuboid } in parts {
                numbers::put(&mut bytes, u64::from(rank.0) << 3 | u64::from(*is_above) << 2 | side.code());
                numbers::put(&mut bytes, numbers::from_step(i64::from(of.0) - i64::from(rank.0)));
                numbers::put(&mut bytes, u64::from(*number));
                cuboid.put(dims, &mut bytes);
            }
            if !inner.is_empty() {
                numbers::put(&mut bytes, inner.len() as u64);
                inner.iter().for_each(|cell| cell.put(dims, &mut bytes));
            }
        }
        bytes
    }

    /// Posts from such bytes; `None` if they are truncated or not from [`Post::encode`].
    pub fn decode(mut bytes: &[u8], dims: usize) -> Option<Vec<Post>> {
        let mut posts = Vec::new();
        while !bytes.is_empty() {
            let first = numbers::take(&mut bytes)?;
            let cuboid = Cuboid::take(dims, &mut bytes)?;
            let place = Place { cuts: u32::try_from(first >> 1).ok()?, cuboid };
            let count = count(&mut bytes)?;
            let mut parts = Vec::with_capacity(count.min(POST_BYTES));
            for _ in 0..count {
                let first = numbers::take(&mut bytes)?;
                let rank = Rank(u32::try_from(first >> 3).ok()?);
                let (side, is_above) = (Side::of_code(first & 3)?, first & 4 != 0);
                let step = numbers::to_step(numbers::take(&mut bytes)?);
                let of = Rank(u32::try_from(i64::from(rank.0).checked_add(step)?).ok()?);
                let number = u32::try_from(numbers::take(&mut bytes)?).ok()?;
                let cuboid = Cuboid::take(dims, &mut bytes).filter(|own| cuboid.contains(own) && !own.is_empty())?;
                parts.push(Placed { side, rank, of, number, is_above, cuboid });
            }
            let mut inner = Vec::new();
            for _ in 0..if first & 1 == 1 { self::count(&mut bytes)? } else { 0 } {
                inner.push(Cuboid::take(dims, &mut bytes).filter(|cell| cell.common(&cuboid).is_some())?);
            }
            posts.push(Post { place, parts, inner });
        }
        Some(posts)
    }
}

/// The number of entries that follow. Each entry takes at least one byte.
fn count(bytes: &mut &[u8]) -> Option<usize> {
    usize::try_from(numbers::take(bytes)?).ok().filter(|count| *count <= bytes.len())
}

/// The posts of a rank and their receivers: parts, cell by cell. The parts in `parts` are whole.
pub fn posts(cells: &Cells, dims: usize, parts: impl IntoIterator<Item = Placed>) -> Vec<(Rank, Vec<u8>)> {
    let mut by_cell: BTreeMap<Cuboid, (Rank, Vec<Placed>)> = BTreeMap::new();
    for part in parts {
        cells.touched(&part.cuboid, |owner, cell| {
            by_cell.entry(cell).or_insert_with(|| (owner, Vec::new())).1.extend(part.within(&cell));
        });
    }
    let posts = by_cell.into_iter().map(|(cuboid, (owner, parts))| (owner, Post::of(Place { cuts: 0, cuboid }, parts)));
    bundled(posts, dims)
}

/// The parts of one rank, all of whose elements that rank has.
pub fn all_of(parts: &Parts, side: Side, rank: Rank, of: Rank) -> impl Iterator<Item = Placed> + '_ {
    let numbered = (0..).zip(parts.own()).filter(|(_, own)| !own.is_empty());
    numbered.map(move |(number, own)| Placed { side, rank, of, number, is_above: false, cuboid: *own })
}

/// Bundles of posts to the same ranks, of a bounded length.
fn bundled(posts: impl Iterator<Item = (Rank, Post)>, dims: usize) -> Vec<(Rank, Vec<u8>)> {
    let (mut open, mut bundles): (BTreeMap<Rank, Vec<u8>>, Vec<_>) = (BTreeMap::new(), Vec::new());
    // As many parts of a cell as fit in a bundle, as a number takes at most ten bytes.
    let most = (POST_BYTES / (20 * dims + 30)).max(1);
    for (to, Post { place, parts, mut inner }) in posts {
        let some: Vec<&[Placed]> = if parts.is_empty() { vec![&[]] } else { parts.chunks(most).collect() };
        for parts in some {
            let bundle = open.entry(to).or_default();
            let post = Post { place, parts: parts.to_vec(), inner: std::mem::take(&mut inner) };
            bundle.extend(Post::encode(&[post], dims));
            if bundle.len() > POST_BYTES {
                bundles.push((to, std::mem::take(bundle)));
            }
        }
    }
    bundles.extend(open.into_iter().filter(|(_, bundle)| !bundle.is_empty()));
    bundles
}

/// The content of a cell.
#[derive(Clone, Debug, Default)]
struct Held {
    /// The parts. If the cell was cut: the parts that are handed down to the cells inside it, and not compared here.
    parts: Vec<Placed>,
    /// The number of parts at which cutting was last tried.
    tried: usize,
    /// The cell was cut, and arriving parts are sent on.
    is_cut: bool,
    /// Cells in it that exist.
    inner: Vec<Cuboid>,
}

/// The content of a cell that was not cut.
#[derive(Clone, Copy, Debug)]
pub struct Lying<'s> {
    /// The cell.
    pub cell: &'s Cuboid,
    /// The parts that ranks have in it.
    pub parts: &'s [Placed],
    /// Finer cells that extend into this one. They compare the parts in them.
    pub inner: &'s [Cuboid],
}

/// One rank's cells, and their content.
#[derive(Clone, Debug)]
pub struct Shelf {
    dims: usize,
    cells: Cells,
    held: HashMap<Place, Held>,
}

/// The posts that are to be sent on.
type Onward = Vec<(Rank, Post)>;

impl Shelf {
    /// The shelf of a rank that has received nothing yet.
    pub fn new(cells: &Cells, dims: usize) -> Shelf {
        Shelf { dims, cells: cells.clone(), held: HashMap::new() }
    }

    /// Takes a bundle of posts, and passes each part that arrives to `look`, with the parts that are already in its cell. Returns the
    /// posts that are to be sent on; `None` if the bundle is not valid.
    pub fn take(&mut self, bytes: &[u8], mut look: impl FnMut(&Placed, &[Placed])) -> Option<Vec<(Rank, Vec<u8>)>> {
        let mut onward = Onward::new();
        for post in Post::decode(bytes, self.dims)? {
            self.place(post, &mut look, &mut onward);
        }
        Some(bundled(onward.into_iter(), self.dims))
    }

    fn place(&mut self, post: Post, look: &mut impl FnMut(&Placed, &[Placed]), onward: &mut Onward) {
        let Post { place, parts, inner } = post;
        let cells = &self.cells;
        let held = self.held.entry(place).or_insert_with(|| {
            // A new cell has not been told about any parts in larger cells. It tells the cell around it that it exists,
            // and that cell hands all of them down.
            let around = if place.cuts == 0 { cells.around(&place.cuboid) } else { None };
            onward.extend(around.map(|(owner, cuboid)| {
                (owner, Post { place: Place { cuts: 0, cuboid }, parts: Vec::new(), inner: vec![place.cuboid] })
            }));
            Held::default()
        });
        let news: Vec<Cuboid> = inner.into_iter().filter(|cell| !held.inner.contains(cell)).collect();
        held.inner.extend(&news);
        // Cells hand parts down. Pieces do not, because their cell has already handed down the parts that they hold.
        let hands_down = place.cuts == 0 && cells.are_layered();
        if hands_down {
            onward.extend(news.iter().filter_map(|cell| handed_down(cell, &held.parts, cells)));
            onward.extend(held.inner.iter().filter_map(|cell| handed_down(cell, &parts, cells)));
        }
        if held.is_cut {
            let pieces = pieces(&place, &parts, &news, cells);
            onward.extend(pieces.filter(|(_, post)| !post.parts.is_empty() || !post.inner.is_empty()));
            held.parts.extend(parts.into_iter().filter(|_| hands_down));
            return;
        }
        for part in parts {
            look(&part, &held.parts);
            held.parts.push(part);
        }
        let there = held.parts.len();
        if there > PARTS_MAX && there >= 2 * held.tried {
            let cut: Onward = pieces(&place, &held.parts, &held.inner, cells).collect();
            let parts: usize = cut.iter().map(|(_, post)| post.parts.len()).sum();
            // If most parts lie in most pieces, for example because all ranks want the same, cutting does not spread
            // the work.
            if parts <= SPREAD * there {
                onward.extend(cut);
                held.is_cut = true;
                if !hands_down {
                    held.parts = Vec::new();
                }
            } else {
                held.tried = there;
            }
        }
    }

    /// The cells that were not cut, with the content of each.
    pub fn cells(&self) -> impl Iterator<Item = Lying<'_>> {
        let whole = self.held.iter().filter(|(_, held)| !held.is_cut);
        whole.map(|(place, held)| Lying { cell: &place.cuboid, parts: &held.parts, inner: &held.inner })
    }

    /// Has anything arrived for this cell?
    pub fn knows(&self, cell: &Cuboid) -> bool {
        self.held.contains_key(&Place { cuts: 0, cuboid: *cell })
    }
}

/// The post about parts of this cell that a cell inside it gets: the parts that lie in the inner cell, if there are
/// any.
fn handed_down(cell: &Cuboid, parts: &[Placed], cells: &Cells) -> Option<(Rank, Post)> {
    let above = |part: &Placed| Some(Placed { is_above: true, ..part.within(cell)? });
    let parts: Vec<Placed> = parts.iter().filter_map(above).collect();
    (!parts.is_empty()).then(|| (hashed(cell, cells.ranks()), Post::of(Place { cuts: 0, cuboid: *cell }, parts)))
}

/// The pieces of a cell, with the owner of each and the parts in it.
fn pieces<'p>(
    place: &Place,
    parts: &'p [Placed],
    inner: &'p [Cuboid],
    cells: &Cells,
) -> impl Iterator<Item = (Rank, Post)> + use<'p> {
    let (ranks, cuts) = (cells.ranks(), place.cuts.saturating_add(1));
    let inside = place.cuboid.common(cells.whole());
    inside.map(|inside| inside.cut(PIECES)).unwrap_or_default().into_iter().map(move |cuboid| {
        let parts = parts.iter().filter_map(|part| part.within(&cuboid)).collect();
        let inner = inner.iter().filter(|cell| cell.common(&cuboid).is_some()).copied().collect();
        (hashed(&cuboid, ranks), Post { place: Place { cuts, cuboid }, parts, inner })
    })
}
