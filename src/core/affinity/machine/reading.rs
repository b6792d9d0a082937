//! Where a machine is read from.

#[cfg(feature = "hwloc")]
use super::hwloc;
use super::{Machine, parts, sysfs};
use crate::base::log;
use std::sync::OnceLock;

/// The machine that this process runs on.
static HERE: OnceLock<Machine> = OnceLock::new();

impl Machine {
    /// The machine that this process runs on, read once per process. In all other respects, it does not depend on the
    /// process. If neither hwloc nor `/sys` can be read, it is `Machine::default()`.
    ///
    /// # Blocking
    /// The first call blocks, for a look at the node's topology: some tens of milliseconds. No device driver is started.
    pub fn here() -> &'static Machine {
        HERE.get_or_init(|| {
            let machine = read();
            if let Err(error) = machine.check() {
                log::warn!("event=machine-unread error=\"{error}\": nothing is placed");
                return Machine::default();
            }
            let (cpus, nodes, devices) = (machine.cpus.len(), machine.nodes.len(), machine.devices.len());
            log::debug!("event=machine cpus={cpus} nodes={nodes} devices={devices}");
            machine
        })
    }

    /// Has it been read?
    pub fn is_read() -> bool {
        HERE.get().is_some()
    }

    /// A machine from hwloc's XML (`lstopo --of xml`).
    ///
    /// # Errors
    /// What hwloc says, in words.
    #[cfg(feature = "hwloc")]
    pub fn from_xml(xml: &str) -> Result<Machine, String> {
        hwloc::from_xml(xml)
    }

    /// A machine from hwloc's short form, such as `pack:2 numa:4 l3:1 core:8 pu:2`.
    ///
    /// # Errors
    /// What hwloc says, in words.
    #[cfg(feature = "hwloc")]
    pub fn from_synthetic(description: &str) -> Result<Machine, String> {
        hwloc::from_synthetic(description)
    }
}

/// This machine, through hwloc or else from `/sys`.
fn read() -> Machine {
    let root = std::path::Path::new("/sys");
    #[cfg(feature = "hwloc")]
    match hwloc::here(root) {
        Ok(machine) => return machine,
        Err(error) => log::warn!("event=no-topology error=\"{error}\": read from /sys"),
    }
    sysfs::read(root).map(parts::Parts::assemble).unwrap_or_default()
}
