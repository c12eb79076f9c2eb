//! The files of a host that is not there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

/// A folder that looks like `/`; it is gone when this is.
pub(crate) struct Tree(TempDir);

impl Tree {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// A file with a line in it.
    pub(crate) fn file(&self, path: &str, content: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{content}\n")).unwrap();
    }

    pub(crate) fn folder(&self, path: &str) {
        fs::create_dir_all(self.path().join(path)).unwrap();
    }

    /// A link to another path of the tree.
    pub(crate) fn link(&self, path: &str, target: &str) {
        let up = "../".repeat(path.split('/').count() - 1);
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(format!("{up}{target}"), path).unwrap();
    }

    /// An Ethernet device `mlx5_N` on node 0 with one address, on the interface eth0.
    pub(crate) fn nic(&self, name: &str, state: &str, gid: &str) {
        let number = name.trim_start_matches("mlx5_");
        let pci = format!("sys/devices/pci0000:00/0000:0{number}:00.0");
        let base = format!("{pci}/infiniband/{name}");
        self.file(&format!("{pci}/numa_node"), "0");
        self.folder("sys/bus/pci/drivers/mlx5_core");
        self.link(&format!("{pci}/driver"), "sys/bus/pci/drivers/mlx5_core");
        self.file(&format!("{base}/node_type"), "1: CA");
        for (file, content) in [
            ("state", state),
            ("phys_state", "5: LinkUp"),
            ("rate", "100 Gb/sec (4X EDR)"),
            ("link_layer", "Ethernet"),
            ("lid", "0x0"),
            ("gids/0", gid),
            ("gid_attrs/types/0", "RoCE v2"),
            ("gid_attrs/ndevs/0", "eth0"),
        ] {
            self.file(&format!("{base}/ports/1/{file}"), content);
        }
        self.link(&format!("{base}/device"), &pci);
        self.link(&format!("sys/class/infiniband/{name}"), &base);
        self.file(&format!("sys/class/infiniband_verbs/uverbs{number}/ibdev"), name);
        self.file(&format!("dev/infiniband/uverbs{number}"), "");
    }

    /// A GPU of NVIDIA on node 0, with its driver.
    pub(crate) fn nvidia(&self) {
        let base = "sys/devices/pci0000:00/0000:0a:00.0";
        for (file, content) in
            [("class", "0x030200"), ("vendor", "0x10de"), ("device", "0x2330"), ("numa_node", "0")]
        {
            self.file(&format!("{base}/{file}"), content);
        }
        self.folder("sys/bus/pci/drivers/nvidia");
        self.link(&format!("{base}/driver"), "sys/bus/pci/drivers/nvidia");
        self.link("sys/bus/pci/devices/0000:0a:00.0", base);
    }
}
