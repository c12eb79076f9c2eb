//! The matrix: its rule, filters, and files that replace it.

use te_segment::{DeviceKind, Location, NicName};
use te_topology::{Host, MatrixError, NicFilter, parse_matrix, read_matrix};

use crate::machine::Machine;

fn names(nics: &[NicName]) -> Vec<&str> {
    nics.iter().map(NicName::as_str).collect()
}

/// The devices for a location, preferred and available.
fn rails(host: &Host, location: &str) -> (Vec<String>, Vec<String>) {
    let topology = host.matrix();
    let rails = topology.rails(&location.parse().unwrap()).unwrap();
    let owned = |nics| names(nics).into_iter().map(str::to_owned).collect();
    (owned(&rails.preferred), owned(&rails.available))
}

#[test]
fn a_gpu_prefers_the_device_behind_its_switch() {
    let host = Machine::named("nvlink-8gpu").host();
    for i in 0..8 {
        let (preferred, available) = rails(&host, &format!("cuda:{i}"));
        assert_eq!(preferred, [format!("mlx5_{i}")]);
        assert_eq!(available.len(), 7);
    }
    let (preferred, available) = rails(&host, "cpu:1");
    assert_eq!(preferred, ["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"]);
    assert_eq!(available, ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]);
}

#[test]
fn amd_ordinals_are_those_of_the_compute_driver() {
    let host = Machine::named("amd-8gpu").host();
    // The second on the bus is the first of the driver.
    assert_eq!(rails(&host, "hip:0").0, ["ionic_1"]);
    assert_eq!(rails(&host, "hip:1").0, ["ionic_0"]);
    assert_eq!(rails(&host, "hip:7").0, ["ionic_6"]);
}

#[test]
fn a_runtime_may_number_gpus_otherwise() {
    let mut host = Machine::named("nvlink-8gpu").host();
    let visible = [host.gpus[6].address(), host.gpus[2].address()];
    host.number_gpus(DeviceKind::Cuda, &visible);
    assert_eq!(host.gpus.iter().filter(|gpu| gpu.location.is_some()).count(), 2);
    assert_eq!(host.gpus[6].location, Some(Location::device(DeviceKind::Cuda, 0)));
    let matrix = host.matrix();
    assert!(matrix.rails(&"cuda:1".parse().unwrap()).is_some());
    assert!(matrix.rails(&"cuda:2".parse().unwrap()).is_none());
}

#[test]
fn without_a_node_of_its_own_a_gpu_takes_the_nearest_of_all() {
    let machine = Machine::new(
        "node 0 cpus=0-3 kib=1 free=1 distance=10\n\
         net eth0 mtu=1500\n\
         gpu pci0000:00/0000:00:01.0/0000:01:00.0 numa=-1 vendor=0x10de device=0x1 class=0x030200 \
         driver=nvidia window=1GiB\n\
         nic a_0 at pci0000:00/0000:00:01.0/0000:02:00.0 numa=-1\n\
         port a_0 1 rate=\"1 Gb/sec\" layer=Ethernet gids=1\n\
         gid a_0/1 0 v2 eth0 ::ffff:1.2.3.4\n\
         nic b_0 at pci0000:40/0000:40:01.0/0000:41:00.0 numa=-1\n\
         port b_0 1 rate=\"1 Gb/sec\" layer=Ethernet gids=1\n\
         gid b_0/1 0 v2 eth0 ::ffff:1.2.3.5\n\
         nic c_0 at virtual parent=eth0\n\
         port c_0 1 rate=\"1 Gb/sec\" layer=Ethernet gids=1\n\
         gid c_0/1 0 v2 eth0 ::ffff:1.2.3.6",
    );
    let host = machine.host();
    assert_eq!(rails(&host, "cuda:0"), (vec!["a_0".into()], vec!["b_0".into(), "c_0".into()]));
    // Devices without a node are available everywhere and preferred nowhere.
    assert_eq!(rails(&host, "cpu:0"), (vec![], vec!["a_0".into(), "b_0".into(), "c_0".into()]));
}

#[test]
fn what_another_driver_has_is_no_location() {
    let gpu = |bus: u32, driver: &str| {
        format!(
            "gpu pci0000:00/0000:00:0{bus}.0 numa=0 vendor=0x10de device=0x1 class=0x030200 driver={driver} window=1GiB"
        )
    };
    let text = [gpu(1, "vfio-pci"), gpu(2, "nvidia"), gpu(3, "nouveau")].join("\n");
    let locations = |text: &str| -> Vec<Option<String>> {
        let host = Machine::new(text).host();
        host.gpus.iter().map(|gpu| gpu.location.as_ref().map(ToString::to_string)).collect()
    };
    assert_eq!(locations(&text), [None, Some("cuda:0".to_owned()), None]);
    // A device of AMD without the compute driver.
    let amd = "gpu pci0000:00/0000:00:01.0 numa=0 vendor=0x1002 device=0x1 class=0x030000 driver=amdgpu window=1GiB";
    assert_eq!(locations(amd), [None]);
}

#[test]
fn a_part_of_a_function_is_on_the_node_of_the_function() {
    let machine = Machine::new(
        "node 0 cpus=0 kib=1 free=1 distance=10\nnode 3 cpus=1 kib=1 free=1 distance=20\nnet eth0 mtu=1500\n\
         nic mlx5_2 at pci0000:08/0000:08:00.0/mlx5_core.sf.4\nport mlx5_2 1 rate=\"1 Gb/sec\" layer=Ethernet gids=1\n\
         gid mlx5_2/1 0 v2 eth0 ::ffff:1.2.3.4\nfile sys/bus/pci/devices/0000:08:00.0/numa_node = 3",
    );
    let host = machine.host();
    assert_eq!(host.nics[0].numa, Ok(Some(3)));
    assert_eq!(host.nics[0].pci.as_ref().unwrap().address().to_string(), "0000:08:00.0");
    assert_eq!(rails(&host, "cpu:3"), (vec!["mlx5_2".into()], vec![]));
}

#[test]
fn without_numa_there_is_one_node() {
    let machine = Machine::new(
        "net eth0 mtu=1500\nnic rxe0 at virtual parent=eth0\nport rxe0 1 rate=\"1 Gb/sec\" layer=Ethernet gids=1\n\
         gid rxe0/1 0 v2 eth0 ::ffff:1.2.3.4",
    );
    assert_eq!(machine.host().matrix().to_matrix().to_string(), r#"{"cpu:0":[["rxe0"],[]]}"#);
}

#[test]
fn without_usable_devices_there_is_no_matrix() {
    assert!(Machine::named("no-nic").host().matrix().is_empty());
    assert!(Machine::new("folder sys").host().matrix().is_empty());
}

#[test]
fn what_a_filter_refuses_appears_nowhere() {
    let machine = Machine::named("nvlink-8gpu");
    let filter = NicFilter::all().only("mlx5_0,mlx5_4").unwrap();
    let host = Host::discover(&machine.root(), &filter).unwrap();
    let shown = format!("{}{}{}", host.table(), host.tree(), host.matrix().to_matrix());
    assert!(shown.contains("mlx5_4"));
    for refused in ["mlx5_1", "mlx5_2", "mlx5_7"] {
        assert!(!shown.contains(refused), "{refused} in {shown}");
    }
    assert_eq!(rails(&host, "cuda:1"), (vec!["mlx5_0".into()], vec!["mlx5_4".into()]));
    let error = Host::discover(&machine.root(), &NicFilter::all().without("mlx5_8").unwrap()).unwrap_err();
    assert!(error.to_string().starts_with("there is no RDMA device mlx5_8 on this host; it has mlx5_0, "));
}

#[test]
fn a_matrix_comes_back_from_its_file() {
    let machine = Machine::named("nvlink-8gpu");
    let host = machine.host();
    let path = machine.path().join("matrix.json");
    std::fs::write(&path, host.matrix().to_matrix().to_string()).unwrap();
    assert_eq!(read_matrix(&path, &host.usable_nics()).unwrap(), host.matrix());
    let absent = read_matrix(&machine.path().join("absent.json"), &host.usable_nics()).unwrap_err();
    assert!(matches!(absent, MatrixError::File { .. }), "{absent}");
}

#[test]
fn a_matrix_of_another_form_is_refused() {
    let host = Machine::named("roce-dual-socket").host();
    let refused = |text: &str| parse_matrix(text, &host.usable_nics()).unwrap_err().to_string();
    assert!(parse_matrix(r#"{"cpu:0":[["bnxt_re0"],["bnxt_re1"]]}"#, &host.usable_nics()).is_ok());
    let cases = [
        ("{", "not valid JSON"),
        ("[]", "two lists of devices"),
        (r#"{"cpu:0":[["bnxt_re0"]]}"#, "two lists of devices"),
        (r#"{"cpu:0":[["bnxt_re0"],[],[]]}"#, "two lists of devices"),
        (r#"{"cpu:0":[["bnxt_re0"],[1]]}"#, "two lists of devices"),
        ("null", "names no device"),
        (r#"{"cpu:0":[[],[]]}"#, "names no device"),
        (r#"{"cpu:1":[["bnxt_re7"],[]]}"#, "names bnxt_re7 for cpu:1"),
        // There, but without a link.
        (r#"{"cpu:1":[[],["bnxt_re2"]]}"#, "names bnxt_re2 for cpu:1"),
    ];
    for (text, expected) in cases {
        let error = refused(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}
