//! Work requests as devices take them.
#![allow(unsafe_code, reason = "small WRITEs are read when they are posted")]

use te_segment::MemoryKey;
use te_sys_verbs::{Flags, Local, Remote, Verb, WorkList};
use te_transport::Op;

use crate::client::Part;
use crate::slices::{SendQueue, WorkRequest};

/// Adds the requests of a queue to a list that is posted at once.
pub(crate) fn fill(list: &mut WorkList, requests: &[WorkRequest], _owners: &SendQueue<Part>) {
    for request in requests {
        // Keys of devices have 32 bits, and pieces are far shorter than 4 GiB.
        let key = |key: MemoryKey| u32::try_from(key.value()).unwrap_or(u32::MAX);
        let remote = Remote { address: request.piece.remote.start(), rkey: key(request.remote_key) };
        let local = Local {
            address: request.piece.local.start(),
            len: u32::try_from(request.piece.local.len()).unwrap_or(u32::MAX),
            lkey: key(request.local_key),
        };
        let verb = match request.op {
            Op::Write => Verb::Write(remote),
            Op::Read => Verb::Read(remote),
        };
        let (id, flags) = (request.id.to_bits(), Flags { signalled: request.signalled, ..Flags::default() });
        if request.inline {
            // SAFETY: the queue, which is borrowed, has each request's part, whose slice holds its local bytes until its last
            // part has ended: they stay mapped. They are read by the library as they are, whoever writes them meanwhile.
            unsafe { list.push_inline(id, verb, &[local], flags) };
        } else {
            list.push(id, verb, &[local], flags);
        }
    }
}
