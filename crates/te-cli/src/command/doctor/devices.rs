//! What memory windows and drives need.

use super::check::{Check, NOTHING};
use super::subject::Subject;

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    let mut checks = windows(subject);
    checks.push(drives(subject));
    checks
}

fn windows(subject: &Subject<'_>) -> Vec<Check> {
    let dax = &subject.host.dax;
    if dax.is_empty() {
        let remedy = "make a region and a DAX device (cxl create-region, daxctl)";
        return vec![Check::missing(
            "cxl",
            "windows",
            "no DAX device",
            "there is no memory window to share",
            remedy,
        )];
    }
    // Whatever is not system memory is a window; one that is there is enough.
    let usable =
        |name: &str, driver: &str| driver == "device_dax" && subject.root.has(&format!("dev/{name}"));
    let any =
        dax.iter().any(|window| window.driver.as_deref().is_ok_and(|driver| usable(&window.name, driver)));
    let check = |window: &te_topology::DaxDevice| {
        let name = &window.name;
        let amiss = |found: String, remedy: String| {
            let means = "te does not use this window";
            if any {
                Check::warn("cxl", "window", found, means, remedy)
            } else {
                Check::missing("cxl", "window", found, means, remedy)
            }
        };
        match window.driver.as_deref() {
            Ok("device_dax") if subject.root.has(&format!("dev/{name}")) => {
                let size = window
                    .size
                    .as_ref()
                    .map_or_else(ToString::to_string, |size| format!("{} MiB", size >> 20));
                Check::ok("cxl", "window", format!("{name}: {size}"))
            }
            Ok("device_dax") => amiss(
                format!("{name}: /dev/{name} is not there"),
                "give this container the device".to_owned(),
            ),
            Ok(driver) => amiss(
                format!("{name}: taken by {driver}, as system memory"),
                format!("daxctl reconfigure-device --mode=devdax {name}"),
            ),
            Err(why) => amiss(format!("{name}: {why}"), format!("daxctl enable-device {name}")),
        }
    };
    dax.iter().map(check).collect()
}

fn drives(subject: &Subject<'_>) -> Check {
    let drives = &subject.host.nvme;
    if drives.is_empty() {
        return Check::missing(
            "nvmeof",
            "drives",
            "no NVMe controller",
            "there is no drive to read from",
            NOTHING,
        );
    }
    let local = drives.iter().filter(|drive| drive.transport.as_deref() == Ok("pcie")).count();
    let found = format!("{local} in this host, {} over fabrics", drives.len() - local);
    Check::ok("nvmeof", "drives", found)
}
