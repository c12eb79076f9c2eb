//! Whether RDMA can be used on this host, asked without an engine.

use te_sys_verbs::{Context, Device, Verbs};
use thiserror::Error;

use crate::config::RdmaConfig;

/// Why RDMA cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// libibverbs is not there, or lacks a function.
    #[error("{0}")]
    Library(String),
    /// The library is there and finds no device that can be used: each with the reason.
    #[error("{0}")]
    Devices(String),
}

/// Loads libibverbs, opens each device for a moment and looks at its first port. In one line which devices can be used. An
/// engine asks more of them when it starts, with settings of its own.
///
/// # Errors
///
/// What is lacking: the library, or a device with an active port that has an address.
pub fn probe() -> Result<String, ProbeError> {
    let verbs = Verbs::load().map_err(|lacking| ProbeError::Library(words(&lacking)))?;
    over(&verbs)
}

fn over(verbs: &Verbs) -> Result<String, ProbeError> {
    let devices = verbs.devices().map_err(|lacking| ProbeError::Devices(words(&lacking)))?;
    let (mut usable, mut reasons) = (Vec::new(), Vec::new());
    for device in &devices {
        match check(device) {
            Ok(()) => usable.push(device.name()),
            Err(reason) => reasons.push(format!("{}: {reason}", device.name())),
        }
    }
    match (usable.as_slice(), reasons.as_slice()) {
        ([], []) => Err(ProbeError::Devices("there is no RDMA device".to_owned())),
        ([], reasons) => Err(ProbeError::Devices(reasons.join("; "))),
        (usable, []) => Ok(usable.join(", ")),
        (usable, reasons) => Ok(format!("{}; not {}", usable.join(", "), reasons.join("; not "))),
    }
}

fn check(device: &Device) -> Result<(), String> {
    let context = device.open().map_err(|lacking| words(&lacking))?;
    let port = RdmaConfig::default().port;
    let info = context.port(port).map_err(|error| error.to_string())?;
    if !info.active {
        return Err(format!("port {port} is not active: is the link up?"));
    }
    if !has_address(&context, port, info.gids) {
        // In a container: the interface behind the port is in another network namespace.
        return Err(format!("port {port} has no address: is its interface in this network namespace?"));
    }
    Ok(())
}

fn has_address(context: &Context, port: u8, len: u32) -> bool {
    let mut indices = 0..u8::try_from(len).unwrap_or(u8::MAX);
    indices.any(|index| context.gid_entry(port, index).is_ok_and(|entry| !entry.gid.is_null()))
}

/// Without the words that every such error begins with.
fn words(lacking: &te_sys_verbs::Unavailable) -> String {
    format!("{}: {}", lacking.what, lacking.reason)
}

#[cfg(test)]
mod tests {
    use te_sys_verbs::fake::{Fabric, Fault, Nic};
    use te_sys_verbs::{Call, Gid};

    use super::*;

    fn fabric() -> Fabric {
        Fabric::new(["n0", "n1"].map(Nic::new))
    }

    #[test]
    fn devices_that_can_be_used_are_named() {
        assert_eq!(over(&fabric().verbs()), Ok("n0, n1".to_owned()));
    }

    #[test]
    fn a_device_that_cannot_be_used_is_named_with_the_reason() {
        let fabric = fabric();
        fabric.set_port("n1", false);
        let said = over(&fabric.verbs());
        assert_eq!(said, Ok("n0; not n1: port 1 is not active: is the link up?".to_owned()));
    }

    #[test]
    fn without_a_device_that_can_be_used_each_reason_is_said() {
        let fabric = fabric();
        for index in 0..2 {
            fabric.set_gid("n0", index, Gid::default());
        }
        fabric.fail(Fault::new(Call::OpenDevice, libc::EACCES).on("n1"));
        let Err(ProbeError::Devices(reasons)) = over(&fabric.verbs()) else { panic!("usable") };
        assert!(reasons.contains("n0: port 1 has no address"), "{reasons}");
        assert!(reasons.contains("n1: no permission to open n1: ibv_open_device failed"), "{reasons}");
    }

    #[test]
    fn a_host_without_devices_is_said() {
        let said = over(&Fabric::new([]).verbs());
        assert_eq!(said, Err(ProbeError::Devices("there is no RDMA device".to_owned())));
    }
}
