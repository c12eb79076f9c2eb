//! The functions, as the library has them: channels, completion queues and queue pairs.
//!
//! SAFETY, for all of this file: as for `calls`.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::ptr;

use super::calls::{busy, number, place, pointer, set_errno, settle};
use super::objects::{FakeChannel, hear, pipe};
use super::state::{ChannelState, Pair, Queue, Ranges, Receive};
use crate::error::Call;
use crate::ffi::*;

pub(super) unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: see the top of the file.
    let (core, nic, of) = unsafe { place(context) };
    pointer(settle(&mut core.lock(), Call::CreateCompChannel, nic, 0, |state| {
        let (events, write) = pipe().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
        let id = state.number();
        state.channels.insert(id, ChannelState { context: of, events: write });
        let raw = ibv_comp_channel { context, fd: events.as_raw_fd(), refcnt: 0 };
        Ok((id, Box::into_raw(Box::new(FakeChannel { raw, id, events })).cast()))
    }))
}

pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: see the top of the file.
    let &FakeChannel { raw: ibv_comp_channel { context, .. }, id, .. } =
        unsafe { &*channel.cast::<FakeChannel>() };
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let result = settle(&mut core.lock(), Call::DestroyCompChannel, nic, id, |state| {
        busy(state.queues.values().any(|queue| queue.channel == Some(id)))?;
        state.channels.remove(&id);
        Ok((id, ()))
    });
    if result.is_ok() {
        // SAFETY: boxed when it was made; ended once.
        drop(unsafe { Box::from_raw(channel.cast::<FakeChannel>()) });
    }
    number(result)
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: see the top of the file.
    let (core, nic, id) = unsafe { place(context) };
    // SAFETY: see the top of the file.
    let events = unsafe { channel.cast::<FakeChannel>().as_ref() }.map(|channel| channel.id);
    pointer(settle(&mut core.lock(), Call::CreateCq, nic, 0, |state| {
        let most = state.nics.get(nic).map_or(0, |nic| nic.config.completion_queue_entries as usize);
        let room = usize::try_from(cqe).ok().filter(|room| (1..=most).contains(room)).ok_or(libc::EINVAL)?;
        if !(0..2).contains(&vector) {
            return Err(libc::EINVAL);
        }
        let handle = state.number();
        let raw = Box::into_raw(Box::new(ibv_cq { context, channel, cq_context, handle, cqe }));
        let queue = Queue {
            context: id,
            channel: events,
            raw: raw.expose_provenance(),
            room,
            entries: VecDeque::new(),
            armed: None,
            unacknowledged: 0,
            overrun: false,
        };
        state.queues.insert(handle, queue);
        Ok((handle, raw))
    }))
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: see the top of the file.
    let &ibv_cq { context, handle, .. } = unsafe { &*cq };
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let result = settle(&mut core.lock(), Call::DestroyCq, nic, handle, |state| {
        busy(state.pairs.values().any(|pair| pair.send == handle || pair.receive == handle))?;
        // A real one waits for them, for ever.
        busy(state.queues.get(&handle).is_some_and(|queue| queue.unacknowledged > 0))?;
        state.queues.remove(&handle);
        Ok((handle, ()))
    });
    if result.is_ok() {
        // SAFETY: boxed when it was made; ended once.
        core.lock().bury(unsafe { Box::from_raw(cq) });
    }
    number(result)
}

pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cookie: *mut *mut c_void,
) -> c_int {
    // SAFETY: see the top of the file.
    let context = unsafe { (*channel).context };
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let mut state = core.lock();
    if let Some(errno) = state.fault(Call::GetCqEvent, nic) {
        set_errno(errno);
        return -1;
    }
    // SAFETY: see the top of the file.
    let fake = unsafe { &*channel.cast::<FakeChannel>() };
    // A queue that is gone takes its events along.
    let raw = loop {
        let Some([_, raw]) = hear(&fake.events) else { return -1 };
        let raw = usize::try_from(raw).unwrap_or(0);
        if let Some(queue) = state.queues.values_mut().find(|queue| queue.raw == raw) {
            queue.unacknowledged += 1;
            break raw;
        }
    };
    let found = ptr::with_exposed_provenance_mut::<ibv_cq>(raw);
    // SAFETY: the queue exists, as was just seen.
    let found_cookie = unsafe { (*found).cq_context };
    // SAFETY: see the top of the file.
    unsafe { *cq = found };
    // SAFETY: see the top of the file.
    unsafe { *cookie = found_cookie };
    0
}

pub(super) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    // SAFETY: see the top of the file.
    let &ibv_cq { context, handle, .. } = unsafe { &*cq };
    // SAFETY: see the top of the file.
    let (core, _, _) = unsafe { place(context) };
    if let Some(queue) = core.lock().queues.get_mut(&handle) {
        queue.unacknowledged = queue.unacknowledged.saturating_sub(events);
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: see the top of the file.
    let &ibv_cq { context, handle, .. } = unsafe { &*cq };
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let mut state = core.lock();
    if let Some(errno) = state.fault(Call::ReqNotifyCq, nic) {
        return errno;
    }
    let Some(queue) = state.queues.get_mut(&handle) else { return libc::EINVAL };
    queue.armed = Some(solicited_only != 0 && queue.armed != Some(false));
    0
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, len: c_int, room: *mut ibv_wc) -> c_int {
    // SAFETY: see the top of the file.
    let &ibv_cq { context, handle, .. } = unsafe { &*cq };
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let mut state = core.lock();
    if let Some(errno) = state.fault(Call::PollCq, nic) {
        return errno.saturating_neg();
    }
    let Some(queue) = state.queues.get_mut(&handle) else { return -libc::EINVAL };
    if queue.overrun && queue.entries.is_empty() {
        return -libc::EIO;
    }
    let count = usize::try_from(len).unwrap_or(0).min(queue.entries.len());
    for at in 0..count {
        let taken = state.queues.get_mut(&handle).and_then(|queue| queue.entries.pop_front());
        let Some((entry, request)) = taken else { break };
        // SAFETY: see the top of the file; there is room for `len`.
        unsafe { room.wrapping_add(at).write(entry) };
        // Whatever was posted before it is complete too, and its place free.
        if let Some(pair) = state.pairs.get_mut(&entry.qp_num) {
            pair.freed = pair.freed.max(request);
        }
    }
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

pub(super) unsafe extern "C" fn create_qp(pd: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: see the top of the file.
    let &ibv_pd { context, handle: domain, .. } = unsafe { &*pd };
    // SAFETY: see the top of the file.
    let wanted = unsafe { &*wanted };
    // SAFETY: see the top of the file.
    let (core, nic, id) = unsafe { place(context) };
    // SAFETY: see the top of the file.
    let send = unsafe { &*wanted.send_cq }.handle;
    // SAFETY: see the top of the file.
    let receive = unsafe { &*wanted.recv_cq }.handle;
    pointer(settle(&mut core.lock(), Call::CreateQp, nic, 0, |state| {
        let size = wanted.cap;
        let fits = size.max_send_wr <= 1 << 14 && size.max_recv_wr <= 1 << 14 && size.max_send_sge <= 16;
        if !fits || wanted.qp_type != IBV_QPT_RC {
            return Err(libc::EINVAL);
        }
        let qp_num = state.number();
        let raw = Box::into_raw(Box::new(ibv_qp {
            context,
            qp_context: wanted.qp_context,
            pd,
            send_cq: wanted.send_cq,
            recv_cq: wanted.recv_cq,
            srq: ptr::null_mut(),
            handle: qp_num,
            qp_num,
            state: IBV_QPS_RESET,
            qp_type: IBV_QPT_RC,
        }));
        let pair = Pair {
            context: id,
            nic,
            domain,
            raw: raw.expose_provenance(),
            send,
            receive,
            size,
            attributes: ibv_qp_attr::default(),
            accepted: 0,
            freed: 0,
            waiting: VecDeque::new(),
            receives: VecDeque::new(),
        };
        state.pairs.insert(qp_num, pair);
        Ok((qp_num, raw))
    }))
}

pub(super) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: see the top of the file.
    let &ibv_qp { context, qp_num, .. } = unsafe { &*qp };
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let result = settle(&mut core.lock(), Call::DestroyQp, nic, qp_num, |state| {
        let left = state.pairs.get_mut(&qp_num).map(|pair| std::mem::take(&mut pair.waiting));
        left.into_iter().flatten().for_each(|request| state.linger(qp_num, &request));
        state.pairs.remove(&qp_num);
        Ok((qp_num, ()))
    });
    if result.is_ok() {
        // SAFETY: boxed when it was made; ended once.
        core.lock().bury(unsafe { Box::from_raw(qp) });
    }
    number(result)
}

pub(super) unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, wanted: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: see the top of the file.
    let &ibv_qp { context, qp_num: pair, .. } = unsafe { &*qp };
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    // SAFETY: see the top of the file.
    let wanted = unsafe { &*wanted };
    number(settle(&mut core.lock(), Call::ModifyQp, nic, pair, |state| {
        state.change(pair, nic, wanted, mask)?;
        Ok((pair, ()))
    }))
}

pub(super) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    _made: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: see the top of the file.
    let &ibv_qp { context, qp_num: pair, .. } = unsafe { &*qp };
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let mut state = core.lock();
    if let Some(errno) = state.fault(Call::QueryQp, nic) {
        return errno;
    }
    let Some(pair) = state.pairs.get(&pair) else { return libc::EINVAL };
    // SAFETY: see the top of the file.
    unsafe { *attr = pair.attributes };
    0
}

/// The ranges of a request.
unsafe fn ranges(list: *const ibv_sge, count: c_int) -> Ranges<ibv_sge> {
    match usize::try_from(count) {
        Ok(count) if count > 0 => {
            // SAFETY: see the top of the file; there are so many.
            unsafe { std::slice::from_raw_parts(list, count) }.iter().copied().collect()
        }
        _ => std::iter::empty().collect(),
    }
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: see the top of the file.
    let &ibv_qp { context, qp_num: pair_number, .. } = unsafe { &*qp };
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let mut state = core.lock();
    state.posted.0 += 1;
    let mut refused = state.fault(Call::PostSend, nic).map(|errno| (0, errno));
    if refused.is_none() {
        refused = state.refusal(nic, || {
            let mut len = 0;
            let mut next = first;
            // SAFETY: see the top of the file; the list ends with null.
            while let Some(request) = unsafe { next.as_ref() } {
                (len, next) = (len + 1, request.next);
            }
            len
        });
    }
    let (mut next, mut place, mut rc) = (first, 0, 0);
    // SAFETY: see the top of the file; the list ends with null.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: see the top of the file.
        let local = unsafe { ranges(request.sg_list, request.num_sge) };
        let result = match refused {
            Some((at, errno)) if at == place => Err(errno),
            _ => state.accept(pair_number, request, local),
        };
        if let Err(errno) = result {
            // SAFETY: see the top of the file.
            unsafe { *bad = next };
            rc = errno;
            break;
        }
        state.posted.1 += 1;
        (next, place) = (request.next, place + 1);
    }
    state.run(pair_number);
    rc
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: see the top of the file.
    let &ibv_qp { context, qp_num: pair_number, .. } = unsafe { &*qp };
    // SAFETY: see the top of the file.
    let (core, nic, _) = unsafe { place(context) };
    let mut state = core.lock();
    let fault = state.fault(Call::PostRecv, nic);
    let mut next = first;
    // SAFETY: see the top of the file; the list ends with null.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: see the top of the file.
        let local = unsafe { ranges(request.sg_list, request.num_sge) };
        let receive = Receive { id: request.wr_id, local };
        let result = fault.map_or_else(|| state.accept_receive(pair_number, receive), Err);
        if let Err(errno) = result {
            // SAFETY: see the top of the file.
            unsafe { *bad = next };
            return errno;
        }
        next = request.next;
    }
    // A peer may have been waiting for them.
    state.run_all();
    0
}
