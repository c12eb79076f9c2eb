//! What memory of GPUs needs: the vendor's library, and a way for RDMA devices to reach it.

use te_segment::{DeviceKind, Location};

use super::check::{Check, NOTHING};
use super::libraries;
use super::subject::Subject;

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    let count = |kind| subject.host.gpus.iter().filter(|gpu| is_of(kind, gpu.location.as_ref())).count();
    let (nvidia, amd) = (count(DeviceKind::Cuda), count(DeviceKind::Hip));
    checks.push(vendor(subject, "nvlink", "NVIDIA", nvidia, &["libcuda.so.1"], "dev/nvidiactl"));
    checks.push(vendor(subject, "hip", "AMD", amd, &HIP, "dev/kfd"));
    if nvidia > 0 {
        checks.push(nvidia_by_rdma(subject));
    }
    if amd > 0 {
        checks.push(amd_by_rdma(subject));
    }
    checks
}

/// The library of HIP by its versions; without one only where programs are built.
const HIP: [&str; 4] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"];

fn is_of(kind: DeviceKind, location: Option<&Location>) -> bool {
    matches!(location, Some(Location::Device { kind: k, .. }) if *k == kind)
}

/// Devices, the file that programs open, and the library that opens it.
fn vendor(
    subject: &Subject<'_>,
    path: &str,
    maker: &str,
    count: usize,
    names: &[&str],
    device: &str,
) -> Check {
    let what = "GPUs";
    if count == 0 {
        return Check::missing(path, what, format!("none of {maker}"), "there is no such memory", NOTHING);
    }
    let found = format!("{count} of {maker}");
    if !subject.root.has(device) {
        let remedy = "load the driver, or give this container its devices";
        return Check::missing(
            path,
            what,
            format!("{found}, without /{device}"),
            "no program reaches them",
            remedy,
        );
    }
    match names.iter().find_map(|name| libraries::find(&subject.root, name)) {
        Some(at) => Check::ok(path, what, format!("{found}, /{at}")),
        None => {
            let remedy = "install the driver's libraries, or mount those of the host";
            Check::missing(
                path,
                what,
                format!("{found}, without {}", names.join(" or ")),
                "no program reaches them",
                remedy,
            )
        }
    }
}

/// Since this kernel devices can import memory of other devices as dma-buf.
const DMA_BUF: (u32, u32) = (5, 12);

fn nvidia_by_rdma(subject: &Subject<'_>) -> Check {
    let what = "GPU memory";
    let peermem =
        ["nvidia_peermem", "nv_peer_mem"].into_iter().find(|m| subject.root.has(&format!("sys/module/{m}")));
    if let Some(module) = peermem {
        return Check::ok("rdma", what, format!("the module {module} is loaded"));
    }
    let version = subject.text("proc/driver/nvidia/version").unwrap_or_default();
    let open = version.contains("Open Kernel Module");
    let recent = subject.kernel().is_some_and(|kernel| kernel >= DMA_BUF);
    if open && recent {
        return Check::ok("rdma", what, format!("as dma-buf: open driver, kernel {}", subject.release()));
    }
    let why = match (open, recent) {
        (_, false) => format!("no nvidia_peermem, and kernel {} is too old for dma-buf", subject.release()),
        _ => "no nvidia_peermem, and no open driver, which dma-buf needs".to_owned(),
    };
    let remedy = "modprobe nvidia-peermem, or use the open flavour of the driver on a kernel from 5.12 on";
    Check::warn("rdma", what, why, "RDMA devices do not reach memory of GPUs", remedy)
}

/// What the kernel must be built with.
const P2P: [&str; 2] = ["CONFIG_PCI_P2PDMA=y", "CONFIG_DMABUF_MOVE_NOTIFY=y"];

fn amd_by_rdma(subject: &Subject<'_>) -> Check {
    let what = "GPU memory";
    let means = "RDMA devices do not reach memory of GPUs";
    let remedy = "a kernel with PCI_P2PDMA and DMABUF_MOVE_NOTIFY";
    let Some(config) = subject.text(&format!("boot/config-{}", subject.release())) else {
        let found = format!("how kernel {} was built is not known", subject.release());
        return Check::warn("rdma", what, found, "RDMA devices may not reach memory of GPUs", remedy);
    };
    let lacking: Vec<&str> = P2P.into_iter().filter(|line| config.lines().all(|l| l != *line)).collect();
    if lacking.is_empty() {
        Check::ok("rdma", what, "as dma-buf: the kernel has peer-to-peer DMA")
    } else {
        Check::warn("rdma", what, format!("the kernel has no {}", lacking.join(", no ")), means, remedy)
    }
}
