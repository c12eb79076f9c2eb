//! What every kind of error means and what to do about it: the source of `docs/failures.md`.
//!
//! Data without dependencies, so that `cargo xtask tidy` can render the page from this very file. `ErrorKind::entry`
//! ties each kind to its entry.

/// One kind of error, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// A few words for tables and messages.
    pub name: &'static str,
    /// What is true when this error is reported, and of which bytes.
    pub meaning: &'static str,
    /// Likely causes, the most frequent first.
    pub causes: &'static [&'static str],
    /// What to run or to change next, in order.
    pub next: &'static [&'static str],
}

/// All entries, in the order of the page.
pub const ENTRIES: &[&Entry] = &[
    &DATA_PATH_UNREACHABLE,
    &CONNECTION_LOST,
    &TIMED_OUT,
    &REJECTED,
    &STALE_INCARNATION,
    &SEGMENT_GONE,
    &BUFFER_GONE,
    &UNCONFIRMED,
    &NO_PATH,
    &DAMAGED,
    &PROTOCOL,
    &CANCELLED,
    &NOT_FOUND,
    &METADATA_UNAVAILABLE,
    &DESCRIPTOR_INVALID,
    &NAME,
    &PEER_UNREACHABLE,
    &NOTIFY_REJECTED,
    &STILL_HELD,
    &OVERLAPS,
    &BAD_MEMORY,
    &LIMIT_REACHED,
    &TRANSPORT,
    &OUTSIDE_SEGMENT,
    &PERMISSION_DENIED,
    &INVALID_ARGUMENT,
    &CONFIG,
    &SHUTDOWN,
    &FORKED_CHILD,
];

pub(crate) const DATA_PATH_UNREACHABLE: Entry = Entry {
    name: "data path unreachable",
    meaning: "No connection to the peer's data address could be made within the connect timeout. Nothing of the request \
              was sent; remote memory is unchanged.",
    causes: &[
        "the peer's process is gone, and its descriptor has not expired yet",
        "a firewall or a network namespace between the hosts lets the control port through but not the data port",
        "the peer advertises an address that is not routed from here",
    ],
    next: &[
        "`te probe SEGMENT`: does its control endpoint answer?",
        "`te show SEGMENT`: is the data address one that this host can reach?",
        "open the segment again; a restarted peer has a fresh data port",
    ],
};
pub(crate) const CONNECTION_LOST: Entry = Entry {
    name: "connection lost",
    meaning: "An established connection broke before the answer came. A READ left remote memory unchanged; a WRITE may \
              have written any part of its own range, and the error says whether it still may.",
    causes: &[
        "the peer's process ended or was killed",
        "the peer withdrew the memory or is shutting down",
        "a link or a middlebox dropped the connection",
    ],
    next: &[
        "`te probe SEGMENT`: is the peer alive?",
        "read the range back before you rely on it, or write all of it again",
        "open the segment again if the peer was restarted",
    ],
};
pub(crate) const TIMED_OUT: Entry = Entry {
    name: "timed out",
    meaning: "The deadline passed, or the peer moved no byte for the progress timeout. Locally nothing touches the \
              buffers any more. The error says whether a WRITE may still be applied later: then the target could not be \
              told to refuse it.",
    causes: &[
        "the peer is stopped, swapping or overloaded",
        "the deadline is too short for the size of the batch",
        "packets are lost on the way, for example by a wrong MTU",
    ],
    next: &[
        "read on in the cause: for each path, what the peer acknowledged, what was posted without an answer and what was \
         queued and never begun; then whether the peer is there",
        "`te probe SEGMENT`, then `te bench initiator SEGMENT`: what rate does the path reach?",
        "where `remote` says that the range may still be written, do not reuse the remote range before the peer has \
         ended or has confirmed a later WRITE on it",
        "raise the deadline of the batch",
    ],
};
pub(crate) const REJECTED: Entry = Entry {
    name: "rejected by the target",
    meaning: "The target checked the range and the access and refused. Nothing was applied.",
    causes: &[
        "the range is not inside one registered buffer of the peer any more",
        "the buffer does not permit the operation",
        "the peer is withdrawing the buffer at this moment",
    ],
    next: &["`te show SEGMENT`: which ranges and which access are offered now?", "open the segment again"],
};
pub(crate) const STALE_INCARNATION: Entry = Entry {
    name: "peer was replaced",
    meaning: "The name belongs to another life now; this handle is of an earlier one. Nothing of the newer life was \
              touched.",
    causes: &["the peer was restarted", "another engine took the name over after the lease ended"],
    next: &[
        "open the segment again and ask the application at the peer for its new addresses: they may be the same numbers \
         with other contents",
    ],
};
pub(crate) const SEGMENT_GONE: Entry = Entry {
    name: "segment gone",
    meaning: "The directory said that the segment is gone, and its owner does not answer either. Nothing is sent to it \
              any more.",
    causes: &["the owner shut down", "the owner died and its lease ended"],
    next: &[
        "`te ls --metadata URL`: is there a successor?",
        "drop the handle; open by name when the owner is back",
    ],
};
pub(crate) const BUFFER_GONE: Entry = Entry {
    name: "buffer withdrawn",
    meaning: "The buffer, local or remote, was unregistered after the request was made. Bytes of whoever registered the \
              range since were not touched.",
    causes: &[
        "the owner unregistered the buffer while others used it",
        "a handle was kept longer than its buffer",
    ],
    next: &[
        "refresh the segment (`Segment::sync`) and take the range again",
        "look for the early `unregister`",
    ],
};
pub(crate) const UNCONFIRMED: Entry = Entry {
    name: "not confirmed",
    meaning: "A WRITE was sent in full, but its read-back did not confirm it. It may have been applied. Only the \
              reference engine's framing version 1 ends so.",
    causes: &[
        "the peer closed the connection after the payload",
        "a version 1 peer refused the range, which it cannot say",
    ],
    next: &["read the range back", "`te show SEGMENT`: would the peer speak version 2?"],
};
pub(crate) const NO_PATH: Entry = Entry {
    name: "no path",
    meaning: "No installed transport can serve the request: every one is listed with its reason. Nothing was sent.",
    causes: &[
        "the transport list of the batch or the build leaves out what the peer offers",
        "the memory is of a kind that no common transport moves",
        "`local` alone was asked for, and the peer is not in the local group of this engine",
    ],
    next: &[
        "`te explain SEGMENT`: every candidate with its reason",
        "`te features`: what is compiled in and usable",
    ],
};
pub(crate) const DAMAGED: Entry = Entry {
    name: "damaged",
    meaning: "The bytes in the memory of the receiving side do not fit the digest that the sending side made of them. Only \
              requests with a digest are looked at (setting `tcp.digest`), and copies that are compared with their source \
              (`shm.compare`, `local.compare`).",
    causes: &[
        "somebody wrote to the memory, at either end, while the request was under way",
        "a network device, a driver or memory that changes bytes",
        "a defect of te",
    ],
    next: &[
        "rule out concurrent writes: does the same buffer get a new request before the last one is done?",
        "`te demo --set tcp.digest=always` between the two hosts: every byte is verified, and nobody else writes",
        "kernel logs of both hosts: memory errors, checksum errors of the network device",
    ],
};
pub(crate) const PROTOCOL: Entry = Entry {
    name: "protocol error",
    meaning: "The peer sent something that its framing does not permit. The connection was closed and is not used again.",
    causes: &[
        "something else listens on the port",
        "a defect at the peer",
        "a proxy in between that rewrites streams",
    ],
    next: &["`te show SEGMENT`: whose port is it?", "keep both logs; please report it if both ends are te"],
};
pub(crate) const CANCELLED: Entry = Entry {
    name: "cancelled",
    meaning: "The caller cancelled or dropped the batch. What had completed stays completed; nothing touches the local \
              buffers any more.",
    causes: &["`Batch::cancel`, or the batch was dropped before its end"],
    next: &["nothing, if it was meant; else keep the batch until it has ended"],
};
pub(crate) const NOT_FOUND: Entry = Entry {
    name: "segment not found",
    meaning: "The metadata knows no segment of this name.",
    causes: &[
        "the owner has not published yet, or is gone",
        "a typing error, or another cluster id than the owner's",
        "the owner uses another metadata store",
    ],
    next: &["`te ls --metadata URL`: which names are there?", "compare `te config` of both sides"],
};
pub(crate) const METADATA_UNAVAILABLE: Entry = Entry {
    name: "metadata unavailable",
    meaning: "The metadata store, or in p2p the peer's control endpoint, did not answer in time. Transfers on open \
              segments go on, and publishing resumes by itself.",
    causes: &["the store is down, restarting or overloaded", "a wrong URL, port, user or certificate"],
    next: &[
        "`te ls --metadata URL`: the cause in one line",
        "configure several endpoints of the store: the next one is used when one is silent",
    ],
};
pub(crate) const DESCRIPTOR_INVALID: Entry = Entry {
    name: "descriptor not usable",
    meaning: "What is published under the name does not make sense; the error names the member. The store's value is \
              left as it is.",
    causes: &[
        "another program wrote the key",
        "a newer version of a peer with a member that this one misreads",
    ],
    next: &[
        "`te show SEGMENT --json`: the descriptor as it is read",
        "`te ls --metadata URL`: who owns the name?",
    ],
};
pub(crate) const NAME: Entry = Entry {
    name: "name not usable",
    meaning: "The segment name breaks the rules, another live engine holds it, or it was lost to another one.",
    causes: &[
        "two processes are started with one name",
        "the earlier life was killed a moment ago and its lease has not ended",
        "more than 1,024 bytes, a leading `/`, or a first component `ram` or `rpc_meta`",
    ],
    next: &["`te probe NAME`: does the holder answer?", "wait for one lease period, or choose another name"],
};
pub(crate) const PEER_UNREACHABLE: Entry = Entry {
    name: "peer unreachable",
    meaning: "The peer's control endpoint refused, closed or did not answer in time. This says nothing about its data \
              path.",
    causes: &["the process is gone or stopped", "the control port is blocked", "a peer that predates probes"],
    next: &["`te probe SEGMENT`", "`te show SEGMENT`: is the control address right?"],
};
pub(crate) const NOTIFY_REJECTED: Entry = Entry {
    name: "notification refused",
    meaning: "The data of the batch is applied, but the receiver did not take the notification.",
    causes: &["its queue is full because nobody takes notifications there", "name and message are too large"],
    next: &["take notifications at the receiver", "send again: the data need not be moved again"],
};
pub(crate) const STILL_HELD: Entry = Entry {
    name: "memory still in use",
    meaning: "The withdrawal reached its deadline: the error names what still holds the memory. The memory is not given \
              back, and the call can be repeated; it goes on where it stopped.",
    causes: &[
        "a peer is in the middle of a large request",
        "a holder is stopped",
        "a local batch is not finished",
        "a device still has the memory registered",
    ],
    next: &["call it again with a later deadline", "end or resume the holder that is named"],
};
pub(crate) const OVERLAPS: Entry = Entry {
    name: "memory overlaps a registered region",
    meaning: "A part of the range is registered already; the error names the existing range.",
    causes: &["the same buffer is registered twice", "an allocator gave out memory that is still registered"],
    next: &["register once and share the buffer handle", "unregister before the memory is freed"],
};
pub(crate) const BAD_MEMORY: Entry = Entry {
    name: "memory not usable",
    meaning: "The memory is null, empty, wrapping or not mapped. Nothing was registered.",
    causes: &["a wrong address or length", "memory that was unmapped", "not enough memory for an allocation"],
    next: &["check address and length against the allocator", "`free -m`: is there memory?"],
};
pub(crate) const LIMIT_REACHED: Entry = Entry {
    name: "limit reached",
    meaning: "A documented limit was reached; the error names it, the size and the limit. Nothing was sent.",
    causes: &[
        "too many requests in a batch",
        "a descriptor over the store's largest value",
        "too many regions",
    ],
    next: &[
        "split the batch",
        "register fewer, larger buffers",
        "raise the limit: `te config` names the setting",
    ],
};
pub(crate) const TRANSPORT: Entry = Entry {
    name: "transport error",
    meaning: "A transport could not be installed or could not register memory. Other transports were rolled back.",
    causes: &[
        "no free port in the range",
        "a missing permission or library",
        "the address is not this host's",
    ],
    next: &["`te features`: what is usable here, with the reason", "`te config`: the address and the ports"],
};
pub(crate) const OUTSIDE_SEGMENT: Entry = Entry {
    name: "range outside the segment",
    meaning: "The range does not lie inside one buffer of the descriptor that is known. Nothing was sent.",
    causes: &["an offset was taken for an address, or the other way round", "the peer registered more since"],
    next: &["`te show SEGMENT`: the buffers with their ranges", "`Segment::sync`, then try again"],
};
pub(crate) const PERMISSION_DENIED: Entry = Entry {
    name: "permission denied",
    meaning: "The buffer does not permit the operation. Nothing was sent.",
    causes: &["the owner registered it without remote read or write access"],
    next: &["`te show SEGMENT`: the access of each buffer", "change the access at the owner's registration"],
};
pub(crate) const INVALID_ARGUMENT: Entry = Entry {
    name: "invalid argument",
    meaning: "The call makes no sense as it is: lengths that differ, an empty batch, an empty range. Nothing was sent.",
    causes: &["a defect of the calling program"],
    next: &["the error names the argument"],
};
pub(crate) const CONFIG: Entry = Entry {
    name: "invalid setting",
    meaning: "A setting was not understood, is out of range or cannot be used on this host. Nothing was started.",
    causes: &[
        "a typing error in a file, a flag or an environment variable",
        "a fixed port on which another process listens, or an address that is not this host's",
        "a feature that is not compiled in",
    ],
    next: &[
        "`te config`: every setting with its value and where that came from",
        "`ss -ltnp`, for a port that is in use: who listens there? End that process, or choose another port",
        "`te features`",
    ],
};
pub(crate) const SHUTDOWN: Entry = Entry {
    name: "engine is shutting down",
    meaning: "The engine takes no new work: `shutdown` was called, or its last handle was dropped.",
    causes: &["the program ends", "the handle of the engine was dropped too early"],
    next: &["keep the engine as long as it is used"],
};
pub(crate) const FORKED_CHILD: Entry = Entry {
    name: "forked child",
    meaning: "The process was forked from the one that has the engine. Threads, queue pairs and the answers of peers stay \
              with the parent, so that nothing can be done with the engine here; nothing was sent, and the parent is not \
              affected. What the child drops of the engine is left as it is.",
    causes: &[
        "a program that forks workers after it has started the engine, as `multiprocessing` of Python does unless told otherwise",
        "a helper process that is forked and does not exec",
    ],
    next: &[
        "start an engine in the child, after the fork; it has a name and an address of its own",
        "fork before the engine starts, or have workers started by exec (`spawn` or `forkserver`)",
        "end such children with the parent: they keep its sockets open, so that peers do not see at once that it ended",
    ],
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::ENTRIES;

    #[test]
    fn every_entry_is_listed_once_and_says_what_to_do() {
        let defined = include_str!("catalogue.rs").matches(": Entry = Entry {").count() - 1;
        assert_eq!(ENTRIES.len(), defined);
        let names: BTreeSet<_> = ENTRIES.iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), ENTRIES.len());
        for entry in ENTRIES {
            assert!(!entry.causes.is_empty() && !entry.next.is_empty(), "{}", entry.name);
        }
    }
}
