//! Trees that no kernel makes: nothing fails, nothing blocks, what is wrong has its reason.

use std::fs;
use std::os::unix::fs::symlink;

use proptest::prop_assert;
use proptest::test_runner::{Config, TestRunner};
use te_topology::{Cause, Host, NicFilter, Root, Unusable};

use crate::machine::Machine;

#[test]
fn an_empty_tree_is_a_silent_host() {
    let machine = Machine::new("folder sys");
    let host = machine.host();
    assert!(host.nodes.is_empty() && host.nics.is_empty() && host.gpus.is_empty() && host.nvme.is_empty());
    assert!(host.silent.iter().all(te_topology::Unknown::is_absent));
    assert_eq!(host.silent.len(), 7);
    assert_eq!(host.tree(), "host\n");
    let nowhere = Host::discover(&Root::at("/no/such/tree"), &NicFilter::all()).unwrap();
    assert_eq!(nowhere.silent.len(), 7);
}

#[test]
fn malformed_files_cost_themselves_only() {
    let machine = Machine::named("nvme-storage");
    let host = machine.host();
    let odd = host.nics.iter().find(|nic| nic.name.as_str() == "odd_0").unwrap();
    let text = odd.numa.as_ref().unwrap_err().to_string();
    assert_eq!(text, r#"sys/class/infiniband/odd_0/device/numa_node: says "banana", not a node, or -1"#);
    let port = &odd.ports[0];
    assert!(port.rate.is_err() && port.lid.is_err() && port.link_layer.is_err());
    assert_eq!(odd.firmware.as_deref(), Ok("0"));
    let table = port.gids.as_ref().unwrap();
    assert_eq!((table.len, table.entries.len(), table.unread.len()), (2, 1, 1));
    assert!(matches!(host.usable(odd, None), Err(Unusable::Unknown { port: 1, .. })));
    assert!(host.usable(&host.nics[0], None).is_ok());
}

#[test]
fn what_is_no_plain_file_is_not_opened() {
    let machine = Machine::new("node 0 cpus=0 kib=1 free=1 distance=10");
    let cpus = machine.path().join("sys/devices/system/node/node0/cpulist");
    fs::remove_file(&cpus).unwrap();
    fs::create_dir(&cpus).unwrap();
    assert_eq!(machine.host().nodes[0].cpus.as_ref().unwrap_err().cause, Cause::Foreign);
    // Endless, if it were read.
    fs::remove_dir(&cpus).unwrap();
    symlink("/dev/zero", &cpus).unwrap();
    assert_eq!(machine.host().nodes[0].cpus.as_ref().unwrap_err().cause, Cause::Foreign);
}

#[test]
fn long_files_and_loops_are_refused() {
    let machine = Machine::new("node 0 cpus=0 kib=1 free=1 distance=10");
    machine.file("sys/devices/system/node/node0/cpulist", &"1,".repeat(1 << 20));
    let cause = machine.host().nodes[0].cpus.as_ref().unwrap_err().cause.clone();
    assert_eq!(cause, Cause::TooLong { limit: 1 << 20 });
    fs::create_dir_all(machine.path().join("sys/class/infiniband")).unwrap();
    symlink("loop_0", machine.path().join("sys/class/infiniband/loop_0")).unwrap();
    // Leads out of the tree.
    symlink("/", machine.path().join("sys/class/infiniband/root_0")).unwrap();
    let host = machine.host();
    assert_eq!(host.nics.len(), 2);
    assert!(host.nics.iter().all(|nic| nic.ports.is_empty() && nic.pci.is_err()));
    assert!(host.usable_nics().is_empty());
}

#[test]
fn names_no_descriptor_may_have_are_no_devices() {
    let machine = Machine::new("folder sys/class/infiniband/a@b\nfolder sys/class/infiniband/mlx5_0");
    let names: Vec<String> = machine.host().nics.iter().map(|nic| nic.name.to_string()).collect();
    assert_eq!(names, ["mlx5_0"]);
}

/// Whatever the files of a device say, everything can be shown.
#[test]
fn any_content_can_be_shown() {
    const FILES: [&str; 16] = [
        "sys/class/infiniband/bnxt_re0/node_type",
        "sys/class/infiniband/bnxt_re0/node_guid",
        "sys/class/infiniband/bnxt_re0/fw_ver",
        "sys/class/infiniband/bnxt_re0/device/numa_node",
        "sys/class/infiniband/bnxt_re0/ports/1/state",
        "sys/class/infiniband/bnxt_re0/ports/1/phys_state",
        "sys/class/infiniband/bnxt_re0/ports/1/rate",
        "sys/class/infiniband/bnxt_re0/ports/1/link_layer",
        "sys/class/infiniband/bnxt_re0/ports/1/lid",
        "sys/class/infiniband/bnxt_re0/ports/1/gids/3",
        "sys/class/infiniband/bnxt_re0/ports/1/gid_attrs/types/3",
        "sys/class/infiniband/bnxt_re0/ports/1/gid_attrs/ndevs/3",
        "sys/devices/system/node/node0/cpulist",
        "sys/devices/system/node/node0/meminfo",
        "sys/devices/system/node/node0/distance",
        "sys/class/net/eth0/mtu",
    ];
    let machine = Machine::named("roce-dual-socket");
    let mut runner = TestRunner::new(Config::with_cases(48));
    let cases = ("\\PC{0,24}", 0..FILES.len());
    let outcome = runner.run(&cases, |(content, which)| {
        let path = machine.path().join(FILES[which]);
        let before = fs::read(&path).unwrap();
        machine.file(FILES[which], &content);
        let host = machine.host();
        fs::write(&path, before).unwrap();
        prop_assert!(!host.table().is_empty() && !host.tree().is_empty());
        prop_assert!(host.matrix().nics().iter().any(|nic| nic.as_str() == "bnxt_re1"));
        Ok(())
    });
    outcome.unwrap();
}
