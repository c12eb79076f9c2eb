//! The functions, as the library has them: the table, contexts and registrations.
//!
//! SAFETY, for all of this file: the table that these functions are in is given to the owning layer alone, which passes
//! pointers that it got from here, to objects that it has not destroyed, and to its own structures. Every pointer of the
//! library's types is the beginning of one of `objects`, or a structure boxed here.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use super::backing::Mapping;
use super::devices::{free_device_list, get_device_list, get_device_name};
use super::objects::{FakeContext, FakeDevice, hear, pipe};
use super::queues::*;
use super::state::{ContextState, Core, GONE, Region, State};
use crate::error::Call;
use crate::ffi::*;
use crate::port::LinkLayer;
use crate::table::Symbols;

pub(super) fn symbols(tag: i32) -> Symbols {
    Symbols {
        tag,
        get_device_list,
        free_device_list,
        get_device_name,
        open_device,
        close_device,
        query_device,
        query_port,
        query_gid,
        query_pkey,
        get_async_event,
        ack_async_event,
        alloc_pd,
        dealloc_pd,
        reg_mr,
        dereg_mr,
        create_comp_channel,
        destroy_comp_channel,
        create_cq,
        destroy_cq,
        get_cq_event,
        ack_cq_events,
        create_qp,
        modify_qp,
        query_qp,
        destroy_qp,
        fork_init,
        wc_status_str,
        is_fork_initialized: Some(is_fork_initialized),
        query_gid_ex: Some(query_gid_ex),
        reg_mr_iova2: Some(reg_mr_iova2),
        reg_dmabuf_mr: Some(reg_dmabuf_mr),
    }
}

pub(super) fn set_errno(errno: c_int) {
    // SAFETY: always the thread's own place.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place = errno };
}

/// Gives a failed call its reason, in the way of those that return pointers.
pub(super) fn null<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}

/// The fabric, the NIC and the number of a context. Calls on a NIC that was taken away fail.
pub(super) unsafe fn place(context: *mut ibv_context) -> (Arc<Core>, usize, u32) {
    // SAFETY: see the top of the file.
    let context = unsafe { &*context.cast::<FakeContext>() };
    let is_gone = context.core.lock().contexts.get(&context.id).is_some_and(|context| context.is_gone);
    (Arc::clone(&context.core), if is_gone { GONE } else { context.nic }, context.id)
}

/// Finishes a call that makes or ends something: fails it if that is wanted, else does it, and records it.
pub(super) fn settle<T>(
    state: &mut State,
    call: Call,
    nic: usize,
    handle: u32,
    action: impl FnOnce(&mut State) -> Result<(u32, T), c_int>,
) -> Result<T, c_int> {
    let result = match state.fault(call, nic) {
        Some(errno) => Err(errno),
        None => action(state),
    };
    let (handle, errno) = match &result {
        Ok((made, _)) => (*made, 0),
        Err(errno) => (handle, *errno),
    };
    state.record(call, Some(nic), handle, errno);
    result.map(|(_, value)| value)
}

pub(super) fn pointer<T>(result: Result<*mut T, c_int>) -> *mut T {
    result.unwrap_or_else(null)
}

pub(super) fn number(result: Result<(), c_int>) -> c_int {
    result.map_or_else(|errno| errno, |()| 0)
}

pub(super) fn busy(is_busy: bool) -> Result<(), c_int> {
    if is_busy { Err(libc::EBUSY) } else { Ok(()) }
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: see the top of the file.
    let fake = unsafe { &*device.cast::<FakeDevice>() };
    let mut state = fake.core.lock();
    pointer(settle(&mut state, Call::OpenDevice, fake.nic, 0, |state| {
        if !state.nics.get(fake.nic).is_some_and(|nic| nic.is_there) {
            return Err(libc::ENODEV);
        }
        let (events, write) = pipe().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
        let id = state.number();
        state.contexts.insert(id, ContextState { nic: fake.nic, is_gone: false, events: write });
        let raw = ibv_context {
            device,
            ops: ibv_context_ops {
                unused_before_poll: [ptr::null(); 11],
                poll_cq: Some(poll_cq),
                req_notify_cq: Some(req_notify_cq),
                unused_before_post: [ptr::null(); 12],
                post_send: Some(post_send),
                post_recv: Some(post_recv),
                unused_after_post: [ptr::null(); 5],
            },
            cmd_fd: -1,
            async_fd: events.as_raw_fd(),
            num_comp_vectors: 2,
        };
        let context = FakeContext { raw, core: Arc::clone(&fake.core), nic: fake.nic, id, events };
        Ok((id, Box::into_raw(Box::new(context)).cast()))
    }))
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: see the top of the file.
    let (core, nic, id) = unsafe { place(context) };
    let mut state = core.lock();
    // A descriptor can be closed whatever has become of the device.
    let nic = if nic == GONE { state.contexts.get(&id).map_or(nic, |context| context.nic) } else { nic };
    let result = settle(&mut state, Call::CloseDevice, nic, id, |state| {
        // A real one does not look; here it is a mistake to be found.
        let used = state.domains.values().any(|context| *context == id)
            || state.queues.values().any(|queue| queue.context == id);
        busy(used)?;
        state.contexts.remove(&id);
        Ok((id, ()))
    });
    drop(state);
    if result.is_ok() {
        // SAFETY: boxed when it was opened; closed once.
        drop(unsafe { Box::from_raw(context.cast::<FakeContext>()) });
    }
    number(result)
}

unsafe extern "C" fn query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let mut state = core.lock();
    if let Some(errno) = state.fault(Call::QueryDevice, nic) {
        return errno;
    }
    let Some(known) = state.nics.get(nic) else { return libc::ENODEV };
    // SAFETY: see the top of the file; the owning layer has zeroed it.
    let attr = unsafe { &mut *attr };
    attr.max_mr_size = known.config.registration_bytes;
    attr.max_mr = known.keys.map_or(1 << 20, |(keys, _)| c_int::try_from(keys).unwrap_or(c_int::MAX));
    attr.max_qp = 1 << 16;
    attr.max_qp_wr = 1 << 14;
    attr.max_sge = 16;
    attr.max_cq = 1 << 16;
    attr.max_cqe = c_int::try_from(known.config.completion_queue_entries).unwrap_or(c_int::MAX);
    attr.max_pd = 1 << 10;
    attr.max_qp_rd_atom = known.config.reads.into();
    attr.max_qp_init_rd_atom = known.config.reads.into();
    attr.max_pkeys = 1;
    attr.phys_port_cnt = 1;
    0
}

unsafe extern "C" fn query_port(context: *mut ibv_context, port: u8, room: *mut c_void) -> c_int {
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let mut state = core.lock();
    if let Some(errno) = state.fault(Call::QueryPort, nic) {
        return errno;
    }
    let Some(known) = state.nics.get(nic).filter(|_| port == 1) else { return libc::EINVAL };
    let ethernet = known.config.link_layer == LinkLayer::Ethernet;
    let attr = ibv_port_attr {
        state: if known.active { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
        max_mtu: 5,
        active_mtu: known.config.mtu.code(),
        gid_tbl_len: c_int::try_from(known.config.gids.len()).unwrap_or(c_int::MAX),
        port_cap_flags: 0,
        max_msg_sz: 1 << 31,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: known.config.lid,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: 2,
        active_speed: 32,
        phys_state: 5,
        link_layer: if ethernet { IBV_LINK_LAYER_ETHERNET } else { IBV_LINK_LAYER_INFINIBAND },
        flags: 0,
        port_cap_flags2: 0,
        active_speed_ex: 0,
    };
    // SAFETY: see the top of the file; the owning layer's room is longer.
    unsafe { room.cast::<ibv_port_attr>().write(attr) };
    0
}

unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let mut state = core.lock();
    let errno = state.fault(Call::QueryGid, nic).unwrap_or(libc::EINVAL);
    let known = state.nics.get(nic).filter(|_| port == 1 && errno == libc::EINVAL);
    let found = usize::try_from(index).ok().and_then(|index| known?.config.gids.get(index));
    let Some(found) = found else {
        set_errno(errno);
        return -1;
    };
    // SAFETY: see the top of the file.
    unsafe { *gid = ibv_gid { raw: found.0 } };
    0
}

unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    _flags: u32,
    _size: usize,
) -> c_int {
    let mut gid = ibv_gid::default();
    let (port, number) = (u8::try_from(port).unwrap_or(0), c_int::try_from(index).unwrap_or(-1));
    // SAFETY: the same contract.
    if unsafe { query_gid(context, port, number, &raw mut gid) } != 0 {
        return crate::error::last_errno();
    }
    if gid.raw == [0; 16] {
        return libc::ENODATA;
    }
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let ethernet = core.lock().nics.get(nic).is_some_and(|nic| nic.config.link_layer == LinkLayer::Ethernet);
    let gid_type = if ethernet { IBV_GID_TYPE_ROCE_V2 } else { IBV_GID_TYPE_IB };
    let ndev_ifindex = if ethernet { 1 } else { 0 };
    // SAFETY: see the top of the file.
    unsafe { *entry = ibv_gid_entry { gid, gid_index: index, port_num: 1, gid_type, ndev_ifindex } };
    0
}

unsafe extern "C" fn query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int {
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    if let Some(errno) = core.lock().fault(Call::QueryPkey, nic) {
        set_errno(errno);
        return -1;
    }
    if port != 1 || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: see the top of the file.
    unsafe { *pkey = u16::MAX.to_be() };
    0
}

unsafe extern "C" fn get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    // SAFETY: see the top of the file.
    let fake = unsafe { &*context.cast::<FakeContext>() };
    if let Some(errno) = fake.core.lock().fault(Call::GetAsyncEvent, fake.nic) {
        set_errno(errno);
        return -1;
    }
    let state = fake.core.lock();
    // What is destroyed takes its events along.
    let (event_type, element) = loop {
        let Some([kind, about]) = hear(&fake.events) else {
            if state.contexts.get(&fake.id).is_some_and(|context| context.is_gone) {
                set_errno(libc::EIO);
            }
            return -1;
        };
        let (event_type, raw) =
            (u32::try_from(kind).unwrap_or(u32::MAX), usize::try_from(about).unwrap_or(0));
        match event_type {
            IBV_EVENT_CQ_ERR if state.queues.values().any(|queue| queue.raw == raw) => {
                break (event_type, ibv_async_element { cq: ptr::with_exposed_provenance_mut(raw) });
            }
            IBV_EVENT_QP_ACCESS_ERR if state.pairs.values().any(|pair| pair.raw == raw) => {
                break (event_type, ibv_async_element { qp: ptr::with_exposed_provenance_mut(raw) });
            }
            IBV_EVENT_CQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {}
            _ => break (event_type, ibv_async_element { port_num: 1 }),
        }
    };
    // SAFETY: see the top of the file.
    unsafe { *event = ibv_async_event { element, event_type } };
    0
}

unsafe extern "C" fn ack_async_event(_event: *mut ibv_async_event) {}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: see the top of the file.
    let (core, nic, id) = unsafe { place(context) };
    pointer(settle(&mut core.lock(), Call::AllocPd, nic, 0, |state| {
        let handle = state.number();
        state.domains.insert(handle, id);
        Ok((handle, Box::into_raw(Box::new(ibv_pd { context, handle }))))
    }))
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: see the top of the file.
    let &ibv_pd { context, handle, .. } = unsafe { &*pd };
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let result = settle(&mut core.lock(), Call::DeallocPd, nic, handle, |state| {
        busy(state.regions.values().any(|region| region.domain == handle))?;
        busy(state.pairs.values().any(|pair| pair.domain == handle))?;
        state.domains.remove(&handle);
        Ok((handle, ()))
    });
    if result.is_ok() {
        // SAFETY: boxed when it was made; ended once.
        drop(unsafe { Box::from_raw(pd) });
    }
    number(result)
}

/// Registers `len` bytes that requests address from `iova` on. `find` says where they are in this process: an address, and what
/// keeps it if it is not the process's own.
unsafe fn register(
    call: Call,
    pd: *mut ibv_pd,
    len: usize,
    iova: u64,
    access: u32,
    find: impl FnOnce(&State) -> Result<(usize, Option<Mapping>), i32>,
) -> *mut ibv_mr {
    // SAFETY: see the top of the file.
    let &ibv_pd { context, handle: domain, .. } = unsafe { &*pd };
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    pointer(settle(&mut core.lock(), call, nic, 0, |state| {
        let known = state.nics.get(nic).ok_or(libc::ENODEV)?;
        let writable = access & IBV_ACCESS_LOCAL_WRITE != 0 || access & IBV_ACCESS_REMOTE_WRITE == 0;
        if len == 0 || len as u64 > known.config.registration_bytes || !writable {
            return Err(libc::EINVAL);
        }
        let owned = state.regions.values().filter(|region| region.nic == nic).count();
        match known.keys {
            Some((keys, errno)) if owned >= keys => return Err(errno),
            _ => {}
        }
        let (address, mapping) = find(state)?;
        let lkey = state.number() << 1;
        let shift = (address as u64).wrapping_sub(iova);
        let region = Region { nic, domain, start: iova, len: len as u64, access, shift, _mapping: mapping };
        state.regions.insert(lkey, region);
        let addr = ptr::without_provenance_mut(address);
        let raw = ibv_mr { context, pd, addr, length: len, handle: lkey, lkey, rkey: lkey | 1 };
        Ok((lkey, Box::into_raw(Box::new(raw))))
    }))
}

/// Where memory is that is registered by its address.
fn at(address: *mut c_void, len: usize) -> impl FnOnce(&State) -> Result<(usize, Option<Mapping>), i32> {
    let address = address.expose_provenance();
    move |state| {
        let behind = state.behind(address as u64, len)?;
        Ok((behind.as_ref().map_or(address, |mapping| mapping.start), behind))
    }
}

unsafe extern "C" fn reg_mr(pd: *mut ibv_pd, address: *mut c_void, len: usize, access: c_int) -> *mut ibv_mr {
    let access = access.cast_unsigned();
    if access & IBV_ACCESS_OPTIONAL_RANGE != 0 {
        return null(libc::EINVAL);
    }
    // SAFETY: the same contract.
    unsafe { register(Call::RegMr, pd, len, address.addr() as u64, access, at(address, len)) }
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the same contract.
    unsafe { register(Call::RegMr, pd, len, iova, access & !IBV_ACCESS_OPTIONAL_RANGE, at(address, len)) }
}

/// What is behind a descriptor is mapped.
unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    if fd < 0 {
        return null(libc::EBADF);
    }
    let find = |_: &State| {
        // SAFETY: the owning layer has it open during the call.
        let mapping = Mapping::new(unsafe { BorrowedFd::borrow_raw(fd) }, offset, len)?;
        Ok((mapping.start, Some(mapping)))
    };
    // SAFETY: the same contract.
    unsafe { register(Call::RegDmabufMr, pd, len, iova, access.cast_unsigned(), find) }
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: see the top of the file.
    let &ibv_mr { context, lkey, .. } = unsafe { &*mr };
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let result = settle(&mut core.lock(), Call::DeregMr, nic, lkey, |state| {
        state.regions.remove(&lkey);
        Ok((lkey, ()))
    });
    if result.is_ok() {
        // SAFETY: boxed when it was made; ended once.
        drop(unsafe { Box::from_raw(mr) });
    }
    number(result)
}

unsafe extern "C" fn fork_init() -> c_int {
    0
}

unsafe extern "C" fn is_fork_initialized() -> u32 {
    IBV_FORK_UNNEEDED
}

unsafe extern "C" fn wc_status_str(status: u32) -> *const c_char {
    if status == IBV_WC_SUCCESS { c"success".as_ptr() } else { c"failed".as_ptr() }
}
