//! What is shown of every machine, compared with `tests/golden`. `BLESS=1` writes what is shown there.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use te_topology::Host;

use crate::machine::Machine;

/// Table, tree and matrix.
fn shown(host: &Host) -> String {
    let mut text = format!("{}\n{}\nmatrix\n", host.table(), host.tree());
    for (location, rails) in host.matrix().iter() {
        let names = |nics: &[te_segment::NicName]| {
            nics.iter().map(te_segment::NicName::as_str).collect::<Vec<_>>().join(" ")
        };
        let line = format!("{location}: {} | {}", names(&rails.preferred), names(&rails.available));
        writeln!(text, "{}", line.trim_end()).unwrap();
    }
    text
}

fn compare(name: &str) {
    let shown = shown(&Machine::named(name).host());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &shown).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap();
    assert_eq!(shown, golden, "{name} is shown otherwise; BLESS=1 records it");
}

macro_rules! machines {
    ($($test:ident: $name:literal,)+) => {
        $(#[test]
        fn $test() {
            compare($name);
        })+

        #[test]
        fn every_machine_is_compared() {
            let mut compared = vec![$(concat!($name, ".txt")),+];
            compared.sort();
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines");
            let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
            let mut files: Vec<String> = files.collect();
            files.sort();
            assert_eq!(files, compared);
        }
    };
}

machines! {
    amd_accelerators: "amd-8gpu",
    a_bond: "bonded",
    a_virtual_machine: "cloud-erdma",
    a_container: "container",
    cxl_memory: "cxl-dax",
    infiniband: "infiniband-hdr",
    nvlink: "nvlink-8gpu",
    no_rdma: "no-nic",
    a_storage_server: "nvme-storage",
    two_sockets: "roce-dual-socket",
    rdma_in_software: "rxe-guest",
}
