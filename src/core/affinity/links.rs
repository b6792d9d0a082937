//! Which GPUs of a node share a PCIe link, so that their bursts can take turns.
//!
//! GPUs behind one PCIe switch share the lanes between the switch and the processor. The link of a GPU is named by the
//! topmost PCI bridge above it, below the host bridge: the *root port*. Links are numbered in the order of the bus ids of
//! their root ports, over all display devices of the node and not only those that a process may use, so that all ranks of a
//! node get the same numbers without communicating. A GPU without a bridge (directly on the host bridge, as in many virtual
//! machines) counts as its own link.
//!
//! The bridges come from hwloc (feature `hwloc`). Without it, or where hwloc does not show the GPU, a GPU is assumed
//! to have its own link, whose number is made from its bus id. Two such numbers may collide; the two GPUs then take
//! turns although they need not.
#![forbid(unsafe_code)]

#[cfg(feature = "hwloc")]
mod hwloc;

use crate::base::log;
use std::fmt;

/// The number of links that can be told apart on a node; higher numbers wrap around.
pub const LINKS_MAX: u32 = 16;

/// A PCI address: `domain:bus:device.function`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct BusId {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl BusId {
    /// Reads `0000:3b:00.0`; the domain may have more digits.
    fn parse(text: &str) -> Option<BusId> {
        let (rest, function) = text.trim().split_once('.')?;
        let mut parts = rest.rsplitn(3, ':');
        let device = u8::from_str_radix(parts.next()?, 16).ok()?;
        let bus = u8::from_str_radix(parts.next()?, 16).ok()?;
        let domain = u32::from_str_radix(parts.next()?, 16).ok()?;
        Some(BusId { domain, bus, device, function: u8::from_str_radix(function, 16).ok()? })
    }

    /// A link number for a GPU of which only the address is known. GPUs on the same bus or on neighbouring
    /// buses get different numbers.
    fn number(self) -> u32 {
        (self.domain + u32::from(self.bus) + u32::from(self.device)) % LINKS_MAX
    }
}

impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// A display device of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Gpu {
    at: BusId,
    /// The topmost PCI bridge above it; `None`: it sits on the host bridge.
    root_port: Option<BusId>,
}

impl Gpu {
    /// The address that names its link: that of the root port, or its own.
    fn link(&self) -> BusId {
        self.root_port.unwrap_or(self.at)
    }
}

/// The number of the link of the GPU at `at` among the links of all GPUs; `None` if it is not one of them.
fn number(gpus: &[Gpu], at: BusId) -> Option<u32> {
    let own = gpus.iter().find(|gpu| gpu.at == at)?.link();
    let mut links: Vec<BusId> = gpus.iter().map(Gpu::link).collect();
    links.sort_unstable();
    links.dedup();
    links.iter().position(|link| *link == own).and_then(|index| u32::try_from(index).ok())
}

/// The number of the link of the GPU with this PCI address, less than [`LINKS_MAX`]. All ranks of a node get the same answer.
/// A device without an address (the host twin) is on link 0.
///
/// # Blocking
/// With the feature `hwloc`, for a look at the node's topology: some tens of milliseconds.
pub fn link_of(bus_id: &str) -> u32 {
    let Some(at) = BusId::parse(bus_id) else {
        if !bus_id.is_empty() {
            log::warn!("event=bus-id-unread bus_id={bus_id:?}");
        }
        return 0;
    };
    let found = number(&node_gpus(), at);
    let link = found.map_or_else(|| at.number(), |number| number % LINKS_MAX);
    match found {
        None => log::info!("event=link-unknown gpu={at} link={link}: assumed to have a link of its own"),
        Some(number) if number >= LINKS_MAX => {
            log::warn!("event=link-wrapped gpu={at} number={number} link={link}: it takes turns with another link");
        }
        Some(_) => log::debug!("event=link gpu={at} link={link}"),
    }
    link
}

/// All display devices of this node that hwloc shows.
fn node_gpus() -> Vec<Gpu> {
    #[cfg(feature = "hwloc")]
    return hwloc::node_gpus().unwrap_or_else(|error| {
        log::warn!("event=no-topology error=\"{error}\"");
        Vec::new()
    });
    #[cfg(not(feature = "hwloc"))]
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> BusId {
        BusId::parse(text).expect(text)
    }

    #[test]
    fn bus_ids_are_read_and_nothing_else() {
        let read = id("0001:3b:1f.7");
        assert_eq!(read, BusId { domain: 1, bus: 0x3b, device: 0x1f, function: 7 });
        assert_eq!(read.to_string(), "0001:3b:1f.7");
        assert_eq!(id("00010000:00:06.0").domain, 0x10000);
        for text in ["", "3b:00.0", "0000:3b:00", "0000:3b:zz.0", "0000:1ff:00.0", "GPU-1234"] {
            assert_eq!(BusId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn devices_without_a_known_place_have_a_number() {
        assert_eq!(link_of(""), 0);
        assert_eq!(link_of("nonsense"), 0);
        // No such bus exists: a device that is not in the topology has its own number.
        assert_eq!(link_of("fffe:fe:1e.0"), id("fffe:fe:1e.0").number());
        assert_ne!(id("0000:00:06.0").number(), id("0000:00:07.0").number());
        assert_ne!(id("0000:18:00.0").number(), id("0000:2a:00.0").number());
    }

    #[test]
    fn numbers_go_by_the_bus_ids_of_the_root_ports() {
        let gpu = |at, port: Option<&str>| Gpu { at: id(at), root_port: port.map(id) };
        let gpus = [
            gpu("0000:90:00.0", Some("0000:80:01.0")),
            gpu("0000:05:00.0", Some("0000:00:03.0")),
            gpu("0000:91:00.0", Some("0000:80:01.0")),
            gpu("0000:00:02.0", None),
        ];
        let found = gpus.map(|gpu| number(&gpus, gpu.at));
        assert_eq!(found, [Some(2), Some(1), Some(2), Some(0)]);
        let mut other_order = gpus;
        other_order.reverse();
        assert_eq!(gpus.map(|gpu| number(&other_order, gpu.at)), found);
        assert_eq!(number(&gpus, id("0000:92:00.0")), None);
    }
}
