//! A machine as a short text, made into the files that such a machine has.
//!
//! A line is a word for what there is, its name, and `key=value` pairs; values with spaces stand in quotes.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::Path;

use te_topology::{Host, NicFilter, Root};
use tempfile::TempDir;

/// The file tree of a machine; it is gone when this is.
pub(crate) struct Machine {
    folder: TempDir,
    verbs: usize,
}

impl Machine {
    /// One of `tests/machines`.
    pub(crate) fn named(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/machines/{name}.txt"));
        Self::new(&fs::read_to_string(path).unwrap())
    }

    pub(crate) fn new(text: &str) -> Self {
        let mut machine = Self { folder: TempDir::new().unwrap(), verbs: 0 };
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            machine.line(line);
        }
        machine
    }

    pub(crate) fn root(&self) -> Root {
        Root::at(self.folder.path())
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn host(&self) -> Host {
        Host::discover(&self.root(), &NicFilter::all()).unwrap()
    }

    /// A file with a line in it.
    pub(crate) fn file(&self, path: &str, content: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{content}\n")).unwrap();
    }

    fn folder(&self, path: &str) {
        fs::create_dir_all(self.folder.path().join(path)).unwrap();
    }

    /// A link to another path of the tree, relative as those of sysfs are.
    fn link(&self, path: &str, target: &str) {
        let up = "../".repeat(path.split('/').count() - 1);
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(format!("{up}{target}"), path).unwrap();
    }

    fn line(&mut self, line: &str) {
        let (kind, rest) = line.split_once(' ').unwrap();
        if kind == "file" {
            let (path, content) = rest.split_once(" = ").unwrap();
            return self.file(path, content);
        }
        let words = words(rest);
        let (plain, pairs): (Vec<_>, Vec<_>) = words.iter().partition(|word| !word.contains('='));
        let pairs = pairs.into_iter().map(|pair| pair.split_once('=').unwrap());
        let values = Values(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect());
        let plain: Vec<&str> = plain.into_iter().map(String::as_str).collect();
        match (kind, plain.as_slice()) {
            ("folder", [path]) => self.folder(path),
            ("node", [number]) => self.node(number, &values),
            ("net", [name]) => self.net(name, &values),
            ("nic", [name, "at", place]) => self.nic(name, place, &values),
            ("port", [nic, port]) => self.port(nic, port, &values),
            ("gid", [port, index, version, netdev, address]) => {
                self.gid(port, index, version, netdev, address)
            }
            ("gpu", [place]) => self.gpu(place, &values),
            ("kfd", [node]) => {
                let (simd, location) = (values.get("simd"), values.get("location"));
                let text = format!("cpu_cores_count 0\nsimd_count {simd}\nlocation_id {location}\ndomain 0");
                self.file(&format!("sys/class/kfd/kfd/topology/nodes/{node}/properties"), &text);
            }
            ("local", [address, netdev]) => self.local(address, netdev),
            ("nvme", [name, "at", place]) => self.nvme(name, place, &values),
            ("region", [name]) => self.region(name, &values),
            ("dax", [name, "in", place]) => self.dax(name, place, &values),
            _ => panic!("no such line: {line}"),
        }
    }

    fn node(&self, number: &str, values: &Values) {
        let base = format!("sys/devices/system/node/node{number}");
        self.file(&format!("{base}/cpulist"), values.get("cpus"));
        self.file(&format!("{base}/distance"), &values.get("distance").replace(',', " "));
        let (total, free) = (values.get("kib"), values.get("free"));
        let text =
            format!("\nNode {number} MemTotal:       {total} kB\nNode {number} MemFree:        {free} kB");
        self.file(&format!("{base}/meminfo"), &text);
    }

    fn net(&self, name: &str, values: &Values) {
        let base = format!("sys/class/net/{name}");
        self.file(&format!("{base}/mtu"), values.get("mtu"));
        self.file(&format!("{base}/operstate"), values.or("state", "up"));
        if let Some(bonded) = values.find("bonded") {
            self.file(&format!("{base}/bonding/slaves"), &bonded.replace(',', " "));
        }
    }

    /// An address of the network namespace.
    fn local(&self, address: &str, netdev: &str) {
        let (path, line) = match address.parse().unwrap() {
            IpAddr::V4(v4) => ("proc/net/fib_trie", format!("     |-- {v4}\n        /32 host LOCAL")),
            IpAddr::V6(v6) => ("proc/net/if_inet6", format!("{:032x} 02 40 00 80 {netdev}", v6.to_bits())),
        };
        let before = fs::read_to_string(self.path().join(path)).unwrap_or_default();
        self.file(path, &format!("{before}{line}"));
    }

    /// What every function of PCI has.
    fn function(&self, place: &str, values: &Values) -> String {
        let base = format!("sys/devices/{place}");
        let address = place.rsplit('/').next().unwrap();
        for (file, key) in
            [("numa_node", "numa"), ("vendor", "vendor"), ("device", "device"), ("class", "class")]
        {
            if let Some(value) = values.find(key) {
                self.file(&format!("{base}/{file}"), value);
            }
        }
        if let Some(driver) = values.find("driver") {
            self.folder(&format!("sys/bus/pci/drivers/{driver}"));
            self.link(&format!("{base}/driver"), &format!("sys/bus/pci/drivers/{driver}"));
        }
        self.link(&format!("sys/bus/pci/devices/{address}"), &base);
        base
    }

    fn nic(&mut self, name: &str, place: &str, values: &Values) {
        let below = if place == "virtual" {
            "sys/devices/virtual".to_owned()
        } else {
            let pci = Values([("class".to_owned(), "0x020000".to_owned())].into());
            let base = self.function(place, &values.with(&pci).without("device"));
            for net in values.or("nets", "").split(',').filter(|net| !net.is_empty()) {
                self.folder(&format!("{base}/net/{net}"));
            }
            self.link(&format!("{base}/infiniband/{name}/device"), &base);
            base
        };
        let base = format!("{below}/infiniband/{name}");
        let file = |file: &str, content: &str| self.file(&format!("{base}/{file}"), content);
        file("node_type", values.or("type", "1: CA"));
        file("node_guid", values.or("guid", "a088:c203:0010:1000"));
        for (name, key) in [("fw_ver", "firmware"), ("board_id", "board"), ("parent", "parent")] {
            if let Some(value) = values.find(key) {
                file(name, value);
            }
        }
        self.link(&format!("sys/class/infiniband/{name}"), &base);
        let verbs = format!("uverbs{}", self.verbs);
        self.verbs += 1;
        self.file(&format!("sys/class/infiniband_verbs/{verbs}/ibdev"), name);
        if values.or("device", "yes") == "yes" {
            self.file(&format!("dev/infiniband/{verbs}"), "");
        }
    }

    fn port(&self, nic: &str, port: &str, values: &Values) {
        let base = format!("sys/class/infiniband/{nic}/ports/{port}");
        let file = |file: &str, content: &str| self.file(&format!("{base}/{file}"), content);
        file("state", values.or("state", "4: ACTIVE"));
        file("phys_state", values.or("link", "5: LinkUp"));
        file("rate", values.get("rate"));
        file("link_layer", values.get("layer"));
        file("lid", values.or("lid", "0x0"));
        for index in 0..values.get("gids").parse().unwrap() {
            file(&format!("gids/{index}"), &[ZERO; 8].join(":"));
        }
    }

    fn gid(&self, port: &str, index: &str, version: &str, netdev: &str, address: &str) {
        let (nic, port) = port.split_once('/').unwrap();
        let base = format!("sys/class/infiniband/{nic}/ports/{port}");
        let address: std::net::Ipv6Addr = address.parse().unwrap();
        let groups: Vec<String> = address.segments().iter().map(|group| format!("{group:04x}")).collect();
        self.file(&format!("{base}/gids/{index}"), &groups.join(":"));
        let kind = if version == "v2" { "RoCE v2" } else { "IB/RoCE v1" };
        self.file(&format!("{base}/gid_attrs/types/{index}"), kind);
        if netdev != "-" {
            self.file(&format!("{base}/gid_attrs/ndevs/{index}"), netdev);
        }
    }

    fn gpu(&self, place: &str, values: &Values) {
        let base = self.function(place, values);
        let size = values.get("window");
        let (unit, shift) = if size.ends_with("GiB") { ("GiB", 30) } else { ("MiB", 20) };
        let last = (size.trim_end_matches(unit).parse::<u64>().unwrap() << shift) - 1;
        let windows = format!("0x0 0xffff 0x40200\n0x0 {last:#x} 0x14220c\n0x0 0x0 0x0");
        self.file(&format!("{base}/resource"), &windows);
        let address = place.rsplit('/').next().unwrap();
        if let Some(model) = values.find("model") {
            let text = format!("Model: \t\t {model}\nIRQ:   \t\t 17");
            self.file(&format!("proc/driver/nvidia/gpus/{address}/information"), &text);
        }
        if let Some(product) = values.find("product") {
            self.file(&format!("{base}/product_name"), product);
        }
    }

    fn nvme(&self, name: &str, place: &str, values: &Values) {
        let base = format!("sys/class/nvme/{name}");
        for (file, key) in [
            ("transport", "transport"),
            ("address", "address"),
            ("model", "model"),
            ("firmware_rev", "firmware"),
        ] {
            self.file(&format!("{base}/{file}"), values.get(key));
        }
        if place != "fabric" {
            let function = self.function(place, &values.without("device"));
            self.link(&format!("{base}/device"), &function);
        }
        if let Some(sectors) = values.find("sectors") {
            self.folder(&format!("{base}/{name}n1"));
            self.file(&format!("sys/block/{name}n1/size"), sectors);
        }
    }

    fn region(&self, name: &str, values: &Values) {
        let base = format!("sys/bus/cxl/devices/{name}");
        for (file, key) in [
            ("size", "size"),
            ("mode", "mode"),
            ("interleave_ways", "ways"),
            ("interleave_granularity", "granularity"),
            ("commit", "commit"),
        ] {
            self.file(&format!("{base}/{file}"), values.get(key));
        }
        if let Some(uuid) = values.find("uuid") {
            self.file(&format!("{base}/uuid"), uuid);
        }
    }

    fn dax(&self, name: &str, place: &str, values: &Values) {
        let base = format!("sys/devices/{place}/{name}");
        for (file, key) in
            [("size", "size"), ("align", "align"), ("numa_node", "numa"), ("target_node", "target")]
        {
            self.file(&format!("{base}/{file}"), values.get(key));
        }
        let driver = format!("sys/bus/dax/drivers/{}", values.get("driver"));
        self.folder(&driver);
        self.link(&format!("{base}/driver"), &driver);
        self.link(&format!("sys/bus/dax/devices/{name}"), &base);
    }
}

const ZERO: &str = "0000";

/// Words of a line; quotes keep one together.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

struct Values(BTreeMap<String, String>);

impl Values {
    fn find(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn get(&self, key: &str) -> &str {
        self.find(key).unwrap_or_else(|| panic!("no {key}"))
    }

    fn or<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.find(key).unwrap_or(default)
    }

    fn with(&self, other: &Self) -> Self {
        Self(self.0.iter().chain(&other.0).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn without(&self, key: &str) -> Self {
        Self(self.0.iter().filter(|(k, _)| *k != key).map(|(k, v)| (k.clone(), v.clone())).collect())
    }
}
