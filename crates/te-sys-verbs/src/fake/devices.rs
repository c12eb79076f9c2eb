//! The functions, as the library has them: lists of devices.
//!
//! SAFETY, for all of this file: as for `calls`.

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use super::calls::null;
use super::objects::FakeDevice;
use super::state::{Core, by_tag};
use crate::error::Call;
use crate::ffi::*;

pub(super) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: see the top of the file.
    let count = unsafe { &mut *count };
    let Some((core, found)) = by_tag(*count) else { return null(libc::ENOSYS) };
    let mut state = core.lock();
    if let Some(errno) = state.fault(Call::GetDeviceList, 0) {
        return null(errno);
    }
    let mut list = Vec::new();
    for nic in found {
        let Some(known) = state.nics.get(nic).filter(|known| known.is_there) else { continue };
        let mut name = [0; IBV_SYSFS_NAME_MAX];
        for (to, from) in name.iter_mut().zip(known.config.name.bytes().take(IBV_SYSFS_NAME_MAX - 1)) {
            *to = from as c_char;
        }
        let raw = ibv_device {
            _ops: [ptr::null(); 2],
            node_type: 1,
            transport_type: 0,
            name,
            dev_name: name,
            dev_path: [0; IBV_SYSFS_PATH_MAX],
            ibdev_path: [0; IBV_SYSFS_PATH_MAX],
        };
        list.push(
            Box::into_raw(Box::new(FakeDevice { raw, core: Arc::clone(&core), nic })).cast::<ibv_device>(),
        );
    }
    *count = c_int::try_from(list.len()).unwrap_or(c_int::MAX);
    list.push(ptr::null_mut());
    state.lists += 1;
    drop(state);
    let first = list.as_mut_ptr();
    LISTS.lock().unwrap_or_else(PoisonError::into_inner).push(List { devices: list, core });
    first
}

/// A list that was given out, which ends in null. It knows its fabric even where there is no device.
struct List {
    devices: Vec<*mut ibv_device>,
    core: Arc<Core>,
}

// SAFETY: the pointers are to boxes that nobody else frees.
unsafe impl Send for List {}

static LISTS: Mutex<Vec<List>> = Mutex::new(Vec::new());

pub(super) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(at) = lists.iter().position(|known| ptr::eq(known.devices.as_ptr(), list)) else { return };
    let list = lists.swap_remove(at);
    drop(lists);
    for device in list.devices.iter().filter(|device| !device.is_null()) {
        // SAFETY: boxed when the list was made, and taken out of the table above.
        drop(unsafe { Box::from_raw(device.cast::<FakeDevice>()) });
    }
    let mut state = list.core.lock();
    state.lists -= 1;
    state.record(Call::FreeDeviceList, None, 0, 0);
}

pub(super) unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: see the top of the file.
    unsafe { &*device }.name.as_ptr()
}
