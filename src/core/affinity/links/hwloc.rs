//! The display devices of a topology, and the bridges above them.
#![forbid(unsafe_code)]

use super::{BusId, Gpu};
use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::{ObjectAttributes, PCIDeviceAttributes, UpstreamAttributes};
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder, TypeFilter};

/// The base class of display controllers (VGA, 3D) in PCI class codes.
const CLASS_DISPLAY: u16 = 0x03;

/// Keeps PCI devices and their bridges. Devices of the operating system are left out: looking for them starts the drivers
/// of all GPUs.
fn with_pci(builder: TopologyBuilder) -> Result<TopologyBuilder, String> {
    let builder = builder.with_io_type_filter(TypeFilter::KeepImportant).map_err(|error| error.to_string())?;
    builder.with_type_filter(ObjectType::OSDevice, TypeFilter::KeepNone).map_err(|error| error.to_string())
}

/// The display devices of this node, including those that this process may not use.
///
/// # Errors
/// What hwloc says, in words.
pub(super) fn node_gpus() -> Result<Vec<Gpu>, String> {
    let builder = with_pci(Topology::builder())?;
    // A rank that is confined to some cores sees what the others see.
    let builder = builder.with_flags(BuildFlags::INCLUDE_DISALLOWED).map_err(|error| error.to_string())?;
    builder.build().map(|topology| gpus(&topology)).map_err(|error| error.to_string())
}

/// The display devices of a topology.
fn gpus(topology: &Topology) -> Vec<Gpu> {
    let found = topology.pci_devices().filter_map(|object| {
        let Some(ObjectAttributes::PCIDevice(attributes)) = object.attributes() else { return None };
        let is_display = attributes.class_id() >> 8 == CLASS_DISPLAY;
        is_display.then(|| Gpu { at: bus_id(attributes), root_port: root_port(object) })
    });
    found.collect()
}

/// The topmost of the bridges above a device that are themselves PCI devices, which the host bridge is not.
fn root_port(device: &TopologyObject) -> Option<BusId> {
    let bridges = device.ancestors().filter_map(|object| match object.attributes() {
        Some(ObjectAttributes::Bridge(bridge)) => bridge.upstream_attributes(),
        _ => None,
    });
    // Ancestors are listed from the bottom up.
    bridges.last().map(|UpstreamAttributes::PCI(attributes)| bus_id(attributes))
}

fn bus_id(attributes: &PCIDeviceAttributes) -> BusId {
    BusId {
        domain: attributes.domain().into(),
        bus: attributes.bus_id(),
        device: attributes.bus_device(),
        function: attributes.function(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::number;
    use super::*;

    /// A machine of one core with these objects below its host bridge.
    fn machine(devices: &str) -> Topology {
        let sets = r#"cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1""#;
        let xml = format!(
            r#"<?xml version="1.0" encoding="UTF-8"?>
            <!DOCTYPE topology SYSTEM "hwloc2.dtd">
            <topology version="2.0">
              <object type="Machine" os_index="0" {sets} allowed_cpuset="0x1" allowed_nodeset="0x1" gp_index="1">
                <object type="NUMANode" os_index="0" {sets} gp_index="2"/>
                <object type="PU" os_index="0" {sets} gp_index="3"/>
                <object type="Bridge" gp_index="4" bridge_type="0-1" depth="0" bridge_pci="0000:[00-1f]">{devices}</object>
              </object>
            </topology>"#
        );
        let builder = with_pci(Topology::builder()).expect("filters");
        builder.from_xml(&xml).expect("XML").build().expect("a topology")
    }

    /// A bridge at `at` with these objects below it.
    fn bridge(at: &str, below: &str) -> String {
        format!(
            r#"<object type="Bridge" gp_index="{}" bridge_type="1-1" depth="1" bridge_pci="0000:[01-1f]"
                pci_busid="0000:{at}" pci_type="0604 [8086:2030] [0000:0000] 07" pci_link_speed="0.0">{below}</object>"#,
            index(at)
        )
    }

    fn device(at: &str, class: &str) -> String {
        format!(
            r#"<object type="PCIDev" gp_index="{}" pci_busid="0000:{at}" pci_type="{class} [10de:2330] [10de:16c1] a1"
                pci_link_speed="0.0"/>"#,
            index(at)
        )
    }

    /// A number for each object of a machine.
    fn index(at: &str) -> u32 {
        let digits: String = at.chars().filter(char::is_ascii_hexdigit).collect();
        u32::from_str_radix(&digits, 16).expect(at) + 100
    }

    fn links<const N: usize>(devices: &str, of: [&str; N]) -> [Option<u32>; N] {
        let gpus = gpus(&machine(devices));
        of.map(|at| number(&gpus, BusId::parse(&format!("0000:{at}")).expect(at)))
    }

    #[test]
    fn gpus_behind_a_switch_share_a_link() {
        let ports = bridge("03:00.0", &device("04:00.0", "0302")) + &bridge("03:01.0", &device("05:00.0", "0302"));
        let switch = bridge("00:01.0", &bridge("02:00.0", &ports));
        let other = bridge("00:02.0", &device("06:00.0", "0302"));
        assert_eq!(links(&(switch + &other), ["04:00.0", "05:00.0", "06:00.0"]), [Some(0), Some(0), Some(1)]);
    }

    #[test]
    fn gpus_behind_their_own_root_ports_have_their_own_links() {
        // The order of the ports counts, not that of the devices.
        let ports = bridge("00:01.0", &device("09:00.0", "0302")) + &bridge("00:03.0", &device("05:00.0", "0300"));
        assert_eq!(links(&ports, ["09:00.0", "05:00.0"]), [Some(0), Some(1)]);
    }

    #[test]
    fn gpus_on_the_host_bridge_have_their_own_links() {
        let network = device("00:03.0", "0200");
        let flat = network + &device("00:06.0", "0302") + &device("00:07.0", "0302");
        assert_eq!(links(&flat, ["00:06.0", "00:07.0"]), [Some(0), Some(1)]);
    }

    #[test]
    fn what_is_no_gpu_of_the_topology_has_no_number() {
        let devices = device("00:03.0", "0200") + &device("00:06.0", "0302");
        assert_eq!(links(&devices, ["00:07.0", "00:03.0"]), [None, None]);
    }

    #[test]
    fn this_node_can_be_looked_at() {
        let gpus = node_gpus().expect("hwloc");
        assert!(gpus.iter().all(|gpu| number(&gpus, gpu.at).is_some()));
    }
}
