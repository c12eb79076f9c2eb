#![cfg(not(miri))]

use super::*;
use crate::Memory;

/// Whether the kernel has NUMA support at all; without it the only promise is to say nothing.
fn kernel_says() -> bool {
    std::path::Path::new("/sys/devices/system/node/node0").exists() && nodes_of(&[]).is_some()
}

fn exists(node: u32) -> bool {
    std::path::Path::new(&format!("/sys/devices/system/node/node{node}")).exists()
}

#[test]
fn present_page_lies_on_an_existing_node() {
    let memory = Memory::allocate(8192).unwrap();
    let node = node_of(memory.address() + 5000);
    assert_eq!(node.is_some(), kernel_says());
    assert!(node.is_none_or(exists));
}

#[test]
fn addresses_that_do_not_exist_have_no_node() {
    for address in [0, 1, 0xdead_0000_0000_0000, u64::MAX] {
        assert_eq!(node_of(address), None, "{address:#x}");
    }
}

#[test]
fn answers_keep_the_order_of_the_questions() {
    let memory = Memory::allocate(4096).unwrap();
    let Some(nodes) = nodes_of(&[0, memory.address(), u64::MAX, memory.address()]) else {
        assert!(!kernel_says());
        return;
    };
    assert_eq!((nodes.len(), nodes[0], nodes[2]), (4, None, None));
    assert_eq!(nodes[1], node_of(memory.address()));
    assert_eq!(nodes[3], nodes[1]);
}

#[test]
fn location_of_a_range_is_that_of_its_pages() {
    for len in [1, 4096, 5 << 20] {
        let memory = Memory::allocate(len).unwrap();
        match location_of(&memory.range().unwrap()) {
            Some(Location::Cpu(node)) => assert!(exists(node)),
            Some(other) => panic!("{other}"),
            // Several nodes, or a kernel that does not say.
            None => assert!(!kernel_says() || exists(1)),
        }
    }
}
