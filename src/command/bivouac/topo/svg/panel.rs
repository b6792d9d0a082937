//! Sizes, and the drawing of one machine: boxes are as large as their contents, all nodes of a machine are equally wide, and boxes that do
//! not fit side by side are placed below.
#![forbid(unsafe_code)]

use super::super::gather::Kind;
use super::canvas::{Anchor, Area, Canvas, Type, fitted, width_of};
use super::colour;
use super::plan::{Cpu, Device, NodePlan, Package, Part, Plan};
use crate::output;
use bivouac_core::affinity::machine::PciKind;

/// The maximum width of packages side by side.
const PAGE: f64 = 1300.0;
/// The maximum width of caches side by side in a node: two caches of 8 cores.
const NODE_MAX: f64 = 600.0;
/// The maximum width of caches side by side in a node of up to [`FEW_CORES`]: one cache of 8 cores. The other caches are below it, so that
/// two packages with two nodes each fit side by side.
const NODE_NARROW: f64 = 300.0;
/// See [`NODE_NARROW`].
const FEW_CORES: usize = 32;
/// The minimum width of a node: room for its title, and for two devices.
const NODE_MIN: f64 = 212.0;
/// The size of the box of a CPU.
const CPU: (f64, f64) = (31.0, 24.0);
/// The space between cores.
const GAP: f64 = 4.0;
/// The space between boxes, and between a box and its contents.
const PAD: f64 = 8.0;
/// The height of the line of a title.
const TITLE: f64 = 18.0;
/// The height of a line of small words.
const SMALL: f64 = 13.0;
/// The height of a bar.
const BAR: f64 = 16.0;
/// The size of the box of a device.
const CHIP: (f64, f64) = (104.0, 18.0);
/// A part of a bar that is at least this wide has its rank's number in it.
const NUMBERED: f64 = 12.0;
/// The maximum number of ranks on one CPU that are drawn side by side.
const STRIPES_MAX: usize = 5;
/// The maximum number of ranks that the legend explains one by one.
const EXPLAINED_MAX: usize = 16;
/// The maximum number of ranks that the legend shows at all.
const SHOWN_MAX: usize = 512;

/// Width and height.
type Size = (f64, f64);

/// Arranges boxes in rows no wider than `width`, and returns the place of each box and the total size.
pub fn flow(sizes: &[Size], width: f64, gap: f64) -> (Vec<Size>, Size) {
    let (mut places, mut x, mut y, mut row, mut widest) = (Vec::new(), 0.0f64, 0.0f64, 0.0f64, 0.0f64);
    for (own, height) in sizes {
        if x > 0.0 && x + own > width {
            (x, y, row) = (0.0, y + row + gap, 0.0);
        }
        places.push((x, y));
        row = row.max(*height);
        widest = widest.max(x + own);
        x += own + gap;
    }
    (places, (widest, y + row))
}

/// Combines things with their sizes and places; things in the same row have the same height.
fn rows<'a, T>(things: &'a [T], sizes: &[Size], places: &[Size]) -> Vec<(&'a T, Size, Size)> {
    let mut heights: Vec<(f64, f64)> = Vec::new();
    for (place, size) in places.iter().zip(sizes) {
        match heights.last_mut() {
            Some((y, height)) if *y == place.1 => *height = height.max(size.1),
            _ => heights.push((place.1, size.1)),
        }
    }
    let height = |y: f64| heights.iter().find(|(own, _)| *own == y).map_or(0.0, |(_, height)| *height);
    let thing = |((thing, size), place): ((&'a T, &Size), &Size)| (thing, (size.0, height(place.1)), *place);
    things.iter().zip(sizes).zip(places).map(thing).collect()
}

/// A machine to be drawn.
pub struct Panel {
    title: String,
    plan: Plan,
    colours: Vec<String>,
    /// The width of the contents of a node.
    node_width: f64,
}

impl Panel {
    /// What the numbers of its ranks stand for.
    fn kind(&self) -> Kind {
        self.plan.ranks.first().map(|rank| rank.kind).unwrap_or_default()
    }

    /// Measures the nodes.
    pub fn new(title: String, plan: Plan) -> Panel {
        let count = plan.ranks.len();
        let colours = (0..count).map(|place| colour::of(place, count)).collect();
        let nodes = plan.packages.iter().flat_map(|package| &package.nodes);
        let node_width = nodes.map(|node| caches(node).1.0).fold(NODE_MIN, f64::max);
        Panel { title, plan, colours, node_width }
    }

    /// Draws the machine with its upper left corner at `left` and `top`, and returns its size. To measure it, it may be drawn on a
    /// canvas that nobody keeps.
    pub fn draw(&self, canvas: &mut Canvas, left: f64, top: f64, width: f64) -> Size {
        let sizes: Vec<Size> = self.plan.packages.iter().map(|package| self.package_size(package)).collect();
        let (places, (boxes, height)) = flow(&sizes, PAGE, PAD * 1.5);
        let width = width.max(boxes);
        canvas.words(left, top + 14.0, Anchor::Start, Type::bold(13.0), &fitted(&self.title, width, 13.5));
        let mut y = top + TITLE + 6.0;
        for (package, size, (dx, dy)) in rows(&self.plan.packages, &sizes, &places) {
            self.draw_package(canvas, package, Area { x: left + dx, y: y + dy, width: size.0, height: size.1 });
        }
        y += height;
        if !self.plan.devices.is_empty() {
            y += PAD;
            y += self.draw_devices(canvas, &self.plan.devices, left, y, width);
        }
        y += PAD;
        y += self.draw_legend(canvas, left, y, width);
        (width, y - top)
    }

    // --------------------------------------------------------------------------------------- packages and nodes

    fn node_size(&self, node: &NodePlan) -> Size {
        let (_, (_, cores)) = caches(node);
        let cores = if cores > 0.0 { cores + PAD } else { 0.0 };
        let bar = if self.plan.bar_bytes > 0 { BAR + SMALL + PAD } else { 0.0 };
        let devices = devices_size(&node.devices, self.node_width);
        let devices = if devices > 0.0 { devices + PAD } else { 0.0 };
        (self.node_width + 2.0 * PAD, TITLE + 4.0 + cores + bar + devices + 2.0)
    }

    fn nodes(&self, package: &Package) -> (Vec<Size>, Vec<Size>, Size) {
        let sizes: Vec<Size> = package.nodes.iter().map(|node| self.node_size(node)).collect();
        let pair = 2.0 * (self.node_width + 2.0 * PAD) + PAD;
        // Two nodes are side by side so that two packages fit side by side, unless the packages are too wide anyway.
        let width = if pair <= PAGE / 2.0 - 2.0 * PAD { pair } else { PAGE - 2.0 * PAD };
        let (places, size) = flow(&sizes, width, PAD);
        (sizes, places, size)
    }

    fn package_size(&self, package: &Package) -> Size {
        let (_, _, (width, height)) = self.nodes(package);
        let devices = devices_size(&package.devices, width);
        let devices = if devices > 0.0 { devices + PAD } else { 0.0 };
        (width + 2.0 * PAD, TITLE + 4.0 + height + PAD + devices)
    }

    fn draw_package(&self, canvas: &mut Canvas, package: &Package, area: Area) {
        canvas.frame(area, "#eef1f5", "#9aa5b1", package.number.is_none());
        canvas.words(area.x + PAD, area.y + 15.0, Anchor::Start, Type::bold(12.0), &package.title);
        let (sizes, places, (width, height)) = self.nodes(package);
        let (x, y) = (area.x + PAD, area.y + TITLE + 4.0);
        for (node, size, (dx, dy)) in rows(&package.nodes, &sizes, &places) {
            self.draw_node(canvas, node, Area { x: x + dx, y: y + dy, width: size.0, height: size.1 });
        }
        if !package.devices.is_empty() {
            self.draw_devices(canvas, &package.devices, x, y + height + PAD, width);
        }
    }

    fn draw_node(&self, canvas: &mut Canvas, node: &NodePlan, area: Area) {
        canvas.frame(area, "#ffffff", "#7b8794", node.is_foreign);
        let (x, mut y) = (area.x + PAD, area.y);
        canvas.words(x, y + 14.0, Anchor::Start, Type::plain(11.5), &node.title);
        y += TITLE + 4.0;
        let (places, (_, height)) = caches(node);
        for ((number, cores), (dx, dy)) in node.caches.iter().zip(places) {
            self.draw_cache(canvas, *number, cores, node.caches.len() > 1, x + dx, y + dy);
        }
        y += if height > 0.0 { height + PAD } else { 0.0 };
        if self.plan.bar_bytes > 0 {
            self.draw_bar(canvas, &node.memory, x, y);
            y += BAR + SMALL + PAD;
        }
        self.draw_devices(canvas, &node.devices, x, y, self.node_width);
    }

    fn draw_cache(&self, canvas: &mut Canvas, number: u32, cores: &[Vec<Cpu>], is_framed: bool, x: f64, y: f64) {
        let (places, (width, height)) = cores_flow(cores);
        let is_framed = is_framed && cores.len() > 1;
        let (dx, dy) = if is_framed { (5.0, SMALL + 2.0) } else { (0.0, 0.0) };
        if is_framed {
            let area = Area { x, y, width: width + 2.0 * dx, height: height + dy + dx };
            canvas.frame(area, "#f7f9fb", "#c3ccd6", false);
            canvas.words(x + dx, y + 11.0, Anchor::Start, Type::faint(9.0), &format!("cache {number}"));
        }
        for (core, (cx, cy)) in cores.iter().zip(places) {
            let (x, y) = (x + dx + cx, y + dy + cy);
            for (index, cpu) in core.iter().enumerate() {
                self.draw_cpu(canvas, cpu, x, y + index as f64 * CPU.1);
            }
            let area = Area { x, y, width: CPU.0, height: core.len() as f64 * CPU.1 };
            canvas.area(area, "none", "#52606d", "");
        }
    }

    fn draw_cpu(&self, canvas: &mut Canvas, cpu: &Cpu, x: f64, y: f64) {
        let ranks: Vec<u32> = cpu.ranks.iter().map(|place| self.plan.ranks[*place].number).collect();
        let hint = match ranks.len() {
            0 => String::new(),
            _ => format!("CPU {}: {}", cpu.number, self.kind().list(&ranks)),
        };
        let fill = match (cpu.is_given, cpu.ranks.len()) {
            (_, count) if count > STRIPES_MAX => "#c9ced6",
            (false, _) => "#e4e7eb",
            (true, _) => "#ffffff",
        };
        let area = Area { x, y, width: CPU.0, height: CPU.1 };
        canvas.area(area, fill, "#cbd2d9", &hint);
        if ranks.len() <= STRIPES_MAX {
            let width = CPU.0 / ranks.len().max(1) as f64;
            for (index, place) in cpu.ranks.iter().enumerate() {
                let area = Area { x: x + index as f64 * width, width, ..area };
                canvas.area(area, &self.colours[*place], "none", &hint);
            }
        }
        let how = if cpu.is_given { Type::plain(10.0) } else { Type::faint(10.0) };
        let middle = x + CPU.0 / 2.0;
        let below = match ranks.as_slice() {
            [] => None,
            [one] if *one < 10_000 => Some(format!("r{one}")),
            [_] => None,
            several => Some(format!("×{}", several.len())),
        };
        let base = if below.is_some() { y + 10.5 } else { y + 15.5 };
        canvas.words(middle, base, Anchor::Middle, how, &cpu.number.to_string());
        if let Some(below) = below {
            canvas.words(middle, y + 20.5, Anchor::Middle, Type::plain(8.5), &below);
        }
    }

    // --------------------------------------------------------------------------------------- memory and devices

    fn draw_bar(&self, canvas: &mut Canvas, parts: &[Part], left: f64, y: f64) {
        let scale = self.node_width / self.plan.bar_bytes as f64;
        canvas.area(Area { x: left, y, width: self.node_width, height: BAR }, "#f5f7fa", "#cbd2d9", "");
        let (mut x, mut sum, mut orphans) = (left, 0u64, 0u64);
        for part in parts {
            let area = Area { x, y, width: part.bytes as f64 * scale, height: BAR };
            let rank = self.plan.ranks[part.rank].number;
            let what = if part.is_orphan { ", where it has no thread" } else { "" };
            let hint = format!("{} {rank}: {}{what}", self.kind().one(), output::bytes(part.bytes));
            let border = if area.width > 4.0 { "#52606d" } else { "none" };
            canvas.area(area, &self.colours[part.rank], border, &hint);
            if part.is_orphan {
                canvas.area(area, "url(#orphan)", "none", &hint);
                orphans = orphans.saturating_add(part.bytes);
            }
            let number = rank.to_string();
            if area.width >= NUMBERED.max(width_of(&number, 9.0) + 6.0) {
                let middle = x + area.width / 2.0;
                if part.is_orphan {
                    let width = width_of(&number, 9.0) + 4.0;
                    let ground = Area { x: middle - width / 2.0, y: y + 2.5, width, height: BAR - 5.0 };
                    canvas.area(ground, "#ffffff", "none", &hint);
                }
                canvas.words(middle, y + 11.5, Anchor::Middle, Type::plain(9.0), &number);
            }
            sum = sum.saturating_add(part.bytes);
            x += area.width;
        }
        let words = match (sum, orphans) {
            (0, _) => "no pages".to_owned(),
            (sum, 0) => format!("{} of pages", output::bytes(sum)),
            (sum, orphans) => format!("{} of pages, {} orphaned", output::bytes(sum), output::bytes(orphans)),
        };
        canvas.words(left, y + BAR + 11.0, Anchor::Start, Type::faint(9.5), &words);
    }

    fn draw_devices(&self, canvas: &mut Canvas, devices: &[Device], left: f64, top: f64, width: f64) -> f64 {
        let (places, (_, height)) = flow(&vec![CHIP; devices.len()], width, 4.0);
        for (device, (dx, dy)) in devices.iter().zip(places) {
            let area = Area { x: left + dx, y: top + dy, width: CHIP.0, height: CHIP.1 };
            let (fill, border) = match device.kind {
                PciKind::Gpu => ("#f1f8e9", "#689f38"),
                PciKind::Network => ("#e8f1fb", "#4a7fb5"),
            };
            canvas.frame(area, fill, border, false);
            let label = fitted(&device.label, CHIP.0 - 6.0, 9.5);
            canvas.words(area.x + 5.0, area.y + 12.5, Anchor::Start, Type::plain(9.5), &label);
            // The ranks whose regions it holds are a strip at its right end.
            let strip = (CHIP.0 - width_of(&label, 9.5) - 12.0).clamp(6.0, 24.0);
            let each = strip / device.ranks.len().max(1) as f64;
            for (index, place) in device.ranks.iter().enumerate() {
                let x = area.x + CHIP.0 - strip - 3.0 + index as f64 * each;
                let hint = format!("regions of {} {}", self.kind().one(), self.plan.ranks[*place].number);
                let mark = Area { x, y: area.y + 3.0, width: each, height: CHIP.1 - 6.0 };
                canvas.area(mark, &self.colours[*place], if each >= 6.0 { "#52606d" } else { "none" }, &hint);
            }
        }
        height
    }

    // --------------------------------------------------------------------------------------- legend

    fn draw_legend(&self, canvas: &mut Canvas, left: f64, top: f64, width: f64) -> f64 {
        let mut y = top;
        let ranks = &self.plan.ranks;
        if ranks.len() <= EXPLAINED_MAX {
            let words: Vec<String> = ranks.iter().map(explain).collect();
            let widest = words.iter().map(|words| width_of(words, 10.5)).fold(0.0, f64::max) + 30.0;
            let (places, (_, height)) = flow(&vec![(widest, 17.0); ranks.len()], width, 6.0);
            for ((words, colour), (dx, dy)) in words.iter().zip(&self.colours).zip(places) {
                let area = Area { x: left + dx, y: y + dy + 1.5, width: 14.0, height: 14.0 };
                canvas.area(area, colour, "#52606d", "");
                canvas.words(area.x + 20.0, y + dy + 12.5, Anchor::Start, Type::plain(10.5), words);
            }
            y += height;
        } else {
            canvas.words(left, y + 12.0, Anchor::Start, Type::plain(10.5), self.kind().many());
            let shown = ranks.len().min(SHOWN_MAX);
            let (places, (_, height)) = flow(&vec![(34.0, 17.0); shown], width - 50.0, 3.0);
            for ((rank, colour), (dx, dy)) in ranks.iter().zip(&self.colours).zip(places) {
                let area = Area { x: left + 46.0 + dx, y: y + dy, width: 34.0, height: 17.0 };
                canvas.area(area, colour, "#52606d", &explain(rank));
                let number = rank.number.to_string();
                canvas.words(
                    area.x + 17.0,
                    area.y + 12.0,
                    Anchor::Middle,
                    Type::plain(9.5),
                    &fitted(&number, 34.0, 9.5),
                );
            }
            y += height;
            if shown < ranks.len() {
                y += SMALL;
                let more = format!("and {} more {}", ranks.len() - shown, self.kind().many());
                canvas.words(left + 46.0, y, Anchor::Start, Type::plain(10.5), &more);
            }
        }
        y += if ranks.is_empty() { 0.0 } else { 6.0 };
        y += self.draw_signs(canvas, left, y, width);
        for note in &self.notes() {
            canvas.words(left, y + 12.0, Anchor::Start, Type::faint(10.5), &fitted(note, width, 10.5));
            y += 16.0;
        }
        y - top
    }

    /// The facts that the colours do not show.
    fn notes(&self) -> Vec<String> {
        let loose = self.plan.ranks.iter().filter(|rank| rank.threads > 0 && rank.pinned == 0);
        let loose: Vec<u32> = loose.map(|rank| rank.number).collect();
        let mut notes = self.plan.notes.clone();
        if !loose.is_empty() {
            let loose = self.kind().list(&loose);
            notes.insert(0, format!("not pinned, so they may run on any CPU that the job was given: {loose}"));
        }
        notes
    }

    /// Draws the signs that occur.
    fn draw_signs(&self, canvas: &mut Canvas, left: f64, y: f64, width: f64) -> f64 {
        let nodes = || self.plan.packages.iter().flat_map(|package| &package.nodes);
        let cpus = || nodes().flat_map(|node| &node.caches).flat_map(|(_, cores)| cores.iter().flatten());
        let mut signs = Vec::new();
        if cpus().any(|cpu| !cpu.is_given) {
            signs.push(("#e4e7eb", "CPU that the job was not given"));
        }
        if cpus().any(|cpu| cpu.ranks.len() > STRIPES_MAX) {
            signs.push(("#c9ced6", "CPU of many ranks (×: how many)"));
        }
        if nodes().any(|node| node.memory.iter().any(|part| part.is_orphan)) {
            signs.push(("url(#orphan)", "orphans: pages of a rank that has no thread on the node"));
        }
        if self.plan.bar_bytes > 0 {
            let whole = output::bytes(self.plan.bar_bytes);
            let words = format!("bars: pages of regions by {}; a whole bar is {whole}", self.kind().one());
            canvas.words(left, y + 12.5, Anchor::Start, Type::faint(10.5), &fitted(&words, width, 10.5));
        }
        let sizes: Vec<Size> = signs.iter().map(|(_, words)| (width_of(words, 10.5) + 36.0, 17.0)).collect();
        let first = if self.plan.bar_bytes > 0 { 17.0 } else { 0.0 };
        let (places, (_, height)) = flow(&sizes, width, 6.0);
        for ((fill, words), (dx, dy)) in signs.iter().zip(places) {
            let area = Area { x: left + dx, y: y + first + dy + 1.5, width: 22.0, height: 14.0 };
            canvas.area(area, fill, "#7b8794", "");
            canvas.words(area.x + 28.0, y + first + dy + 12.5, Anchor::Start, Type::faint(10.5), words);
        }
        first + height
    }
}

fn explain(rank: &super::plan::Rank) -> String {
    let threads = match (rank.pinned, rank.threads) {
        (0, 0) => "no threads known".to_owned(),
        (0, threads) => format!("{threads} threads, not pinned"),
        (pinned, threads) if pinned == threads => format!("{threads} threads, pinned"),
        (pinned, threads) => format!("{threads} threads, {pinned} pinned"),
    };
    let threads = if rank.threads == 1 { threads.replacen("threads", "thread", 1) } else { threads };
    let bytes = if rank.bytes > 0 { format!(", {}", output::bytes(rank.bytes)) } else { String::new() };
    format!("{} {}: {threads}{bytes}", rank.kind.one(), rank.number)
}

/// The places of the cores of a cache, and their total size.
fn cores_flow(cores: &[Vec<Cpu>]) -> (Vec<Size>, Size) {
    let columns = if cores.len() <= 32 { 8 } else { 16 };
    let sizes: Vec<Size> = cores.iter().map(|core| (CPU.0, core.len() as f64 * CPU.1)).collect();
    flow(&sizes, columns as f64 * (CPU.0 + GAP), GAP)
}

/// The places of the caches of a node, and their total size.
fn caches(node: &NodePlan) -> (Vec<Size>, Size) {
    let is_framed = node.caches.len() > 1;
    let size = |cores: &Vec<Vec<Cpu>>| {
        let (_, (width, height)) = cores_flow(cores);
        if is_framed && cores.len() > 1 { (width + 10.0, height + SMALL + 7.0) } else { (width, height) }
    };
    let sizes: Vec<Size> = node.caches.iter().map(|(_, cores)| size(cores)).collect();
    let is_single = node.caches.iter().all(|(_, cores)| cores.len() <= 1);
    let cores: usize = node.caches.iter().map(|(_, cores)| cores.len()).sum();
    // If each core has its own cache, a row has as many cores as if they shared one.
    let width = match (cores <= FEW_CORES, is_single) {
        (true, true) => 8.0 * (CPU.0 + GAP),
        (true, false) => NODE_NARROW,
        (false, _) => NODE_MAX,
    };
    flow(&sizes, width, if is_single { GAP } else { 6.0 })
}

fn devices_size(devices: &[Device], width: f64) -> f64 {
    flow(&vec![CHIP; devices.len()], width, 4.0).1.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_flow_without_overlap() {
        let (places, size) = flow(&[(40.0, 10.0), (40.0, 30.0), (40.0, 10.0), (200.0, 5.0)], 100.0, 5.0);
        assert_eq!(places, [(0.0, 0.0), (45.0, 0.0), (0.0, 35.0), (0.0, 50.0)]);
        assert_eq!(size, (200.0, 55.0));
        assert_eq!(flow(&[], 100.0, 5.0), (Vec::new(), (0.0, 0.0)));
    }
}
