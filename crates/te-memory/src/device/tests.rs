use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use te_segment::{Access, DeviceKind, Location};

use super::DeviceMemory;
use crate::{
    CopyError, Memory, Refusal, Region, RegionTable, RemoteOp, copy_between, same_bytes, testing::served,
};

/// An address that no process of a 64-bit system has: touching it would end the test.
const ADDRESS: u64 = 0x7fff_ffff_0000_0000;

struct Freed(Arc<AtomicBool>);

impl Drop for Freed {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn on_device(len: usize) -> (Memory, Arc<AtomicBool>) {
    let freed = Arc::new(AtomicBool::new(false));
    let device = DeviceMemory::new(DeviceKind::Hip, 2);
    // SAFETY: nobody has this address, and no device is told of it.
    let memory = unsafe { Memory::from_device(ADDRESS, len, device, Box::new(Freed(freed.clone()))) };
    (memory, freed)
}

fn region(table: &RegionTable) -> Region {
    served(table, on_device(4096).0)
}

#[test]
fn nothing_that_copies_touches_it() {
    let table = RegionTable::default();
    let (device, host) = (region(&table), served(&table, Memory::from_vec(vec![7; 4096])));
    let mut bytes = [1; 16];
    assert_eq!(device.read_at(0, &mut bytes), Err(Refusal::DeviceMemory));
    assert_eq!(device.write_at(0, &bytes), Err(Refusal::DeviceMemory));
    assert_eq!(device.read_at(0, &mut []), Err(Refusal::DeviceMemory));
    assert_eq!(device.fill(0), Err(Refusal::DeviceMemory));
    assert_eq!(bytes, [1; 16]);
    let (there, here) = (device.hold(0, 4096).unwrap(), host.hold(0, 4096).unwrap());
    assert_eq!(copy_between(&there, &here), Err(CopyError::DeviceMemory));
    assert_eq!(copy_between(&here, &there), Err(CopyError::DeviceMemory));
    assert_eq!(copy_between(&there, &there), Err(CopyError::DeviceMemory));
    assert!(!same_bytes(&there, &here) && !same_bytes(&there, &there));
    assert_eq!((there.as_ptr(), there.slice(8, 8).unwrap().as_ptr()), (None, None));
    assert!(here.as_ptr().is_some());
    assert_eq!(host.read_at(0, &mut bytes), Ok(()));
    assert_eq!(bytes, [7; 16]);
}

#[test]
fn requests_of_peers_do_not_reach_it_through_the_table() {
    let table = RegionTable::default();
    let device = region(&table);
    for op in [RemoteOp::Read, RemoteOp::Write] {
        assert_eq!(table.remote(ADDRESS, 8, op).unwrap_err(), Refusal::DeviceMemory);
        assert_eq!(table.remote_of(ADDRESS, 8, op, device.generation()).unwrap_err(), Refusal::DeviceMemory);
    }
    assert_eq!(device.holds(), Default::default());
}

#[test]
fn it_lies_on_its_device_whatever_is_stated() {
    let table = RegionTable::default();
    for stated in [Location::Any, Location::cpu(0), Location::device(DeviceKind::Cuda, 7)] {
        let reservation = table.reserve(on_device(4096).0, Access::LOCAL, stated).unwrap();
        assert_eq!(reservation.region().location(), &Location::device(DeviceKind::Hip, 2));
        assert_eq!(reservation.region().device().map(DeviceMemory::index), Some(2));
    }
    let host = served(&table, Memory::from_vec(vec![0; 16]));
    assert!(host.device().is_none());
}

#[test]
fn it_is_kept_and_given_back_as_any_memory() {
    let table = RegionTable::default();
    let (memory, freed) = on_device(4096);
    assert_eq!((memory.address(), memory.len(), memory.bytes()), (ADDRESS, 4096, None));
    let region = served(&table, memory);
    let (hold, keep) = (region.hold(0, 1).unwrap(), region.keep().unwrap());
    region.abandon();
    drop(hold);
    assert!(!freed.load(Ordering::SeqCst));
    drop(keep);
    assert!(freed.load(Ordering::SeqCst));
    let (memory, freed) = on_device(4096);
    let region = served(&table, memory);
    region.block();
    let memory = region.release().unwrap();
    assert!(memory.device().is_some() && !freed.load(Ordering::SeqCst));
    drop(memory);
    assert!(freed.load(Ordering::SeqCst));
}
