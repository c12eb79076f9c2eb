//! What the descriptor says of this transport: the socket of the engine, and how each buffer is reached.

use serde_json::{Value, json};
use te_memory::{Region, Sharing};
use te_segment::{BufferDescriptor, DescriptorBuilder, Incarnation, SegmentDescriptor, TransportKind, Via};

use crate::frame::VERSIONS;

/// The longest name that is believed; the kernel takes 107 bytes.
const MAX_NAME: usize = 100;

/// Where an engine listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Offer {
    /// Name of the socket in the abstract name space.
    pub(crate) socket: String,
    /// The life that is meant.
    pub(crate) life: Incarnation,
}

/// How a buffer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// Its file is mapped.
    File,
    /// By the kernel, from process to process.
    Process,
}

pub(crate) fn advertise(builder: DescriptorBuilder, socket: &str) -> DescriptorBuilder {
    builder.data(TransportKind::SHM, json!({ "version": VERSIONS.1, "socket": socket }))
}

/// What the peer says. Whoever speaks a version speaks the one before too.
pub(crate) fn read(peer: &SegmentDescriptor) -> Result<Offer, String> {
    let data = peer.data(&TransportKind::SHM).ok_or("the peer does not offer shared memory")?;
    let newest = data.get("version").and_then(Value::as_u64).unwrap_or_default();
    if !(u64::from(VERSIONS.0)..=u64::from(VERSIONS.1) + 1).contains(&newest) {
        return Err(format!(
            "the peer speaks version {newest} of shared memory, and this engine {}",
            VERSIONS.1
        ));
    }
    let socket = data.get("socket").and_then(Value::as_str).unwrap_or_default();
    if !(1..=MAX_NAME).contains(&socket.len()) || socket.chars().any(char::is_control) {
        return Err("the peer names no socket for shared memory".to_owned());
    }
    let life = peer.incarnation().ok_or("the peer states no incarnation")?;
    Ok(Offer { socket: socket.to_owned(), life })
}

/// How a region of ours is reached. A file is passed only where the kernel then enforces exactly the access: it knows no
/// memory that can be written and not read, and what can be mapped to write can be written.
pub(crate) fn reached(region: &Region) -> Reached {
    let access = region.access();
    let fits = region.shared_file().is_some_and(|file| match file.sharing() {
        Sharing::ReadOnly => access.allows_read() && !access.allows_write(),
        Sharing::ReadWrite => access.allows_read() && access.allows_write(),
    });
    if fits { Reached::File } else { Reached::Process }
}

pub(crate) fn via(reached: Reached) -> Via {
    let by = match reached {
        Reached::File => "memfd",
        Reached::Process => "process_vm",
    };
    Via::Other(json!({ "by": by }))
}

/// What the peer says of one buffer.
pub(crate) fn reached_at(buffer: &BufferDescriptor) -> Result<Reached, String> {
    let via = buffer.via_transport(&TransportKind::SHM);
    let Some(Via::Other(via)) = via else {
        return Err("the peer does not offer the buffer as shared memory".to_owned());
    };
    match via.get("by").and_then(Value::as_str) {
        Some("memfd") => Ok(Reached::File),
        Some("process_vm") => Ok(Reached::Process),
        _ => Err("the peer offers the buffer in a way that is not known here".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use te_memory::{Memory, RegionTable};
    use te_segment::{Access, Identity, Location, SegmentName};

    use super::*;

    fn peer(data: Value, life: Option<u128>) -> SegmentDescriptor {
        let identity = life.map_or(Identity::Reference, |bits| Identity::Te {
            incarnation: Incarnation::from_bits(bits),
            control: None,
        });
        let builder = SegmentDescriptor::builder(SegmentName::new("peer").unwrap()).identity(identity);
        builder.data(TransportKind::SHM, data).build().unwrap()
    }

    #[test]
    fn own_offer_is_understood_and_so_is_the_next_version() {
        let life = Incarnation::from_bits(1);
        let own = SegmentDescriptor::builder(SegmentName::new("peer").unwrap())
            .identity(Identity::Te { incarnation: life, control: None });
        let offer = Offer { socket: "te-1".to_owned(), life };
        assert_eq!(read(&advertise(own, "te-1").build().unwrap()), Ok(offer.clone()));
        let next = json!({ "version": VERSIONS.1 + 1, "socket": "te-1", "more": [1] });
        assert_eq!(read(&peer(next, Some(1))), Ok(offer));
    }

    #[test]
    fn what_is_no_offer_is_none() {
        let too_new = json!({ "version": VERSIONS.1 + 2, "socket": "a" });
        let long = json!({ "version": 1, "socket": "a".repeat(MAX_NAME + 1) });
        for data in [too_new, long, json!({}), json!({ "version": 1, "socket": "" }), json!(1), json!("x")] {
            assert!(read(&peer(data.clone(), Some(1))).is_err(), "{data}");
        }
        assert!(read(&peer(json!({ "version": 1, "socket": "a" }), None)).is_err());
    }

    #[test]
    fn files_are_passed_only_with_exactly_the_access() {
        use Access as A;
        let table = RegionTable::new(16);
        let region = |memory: Memory, access| table.reserve(memory, access, Location::Any).unwrap().commit();
        for (sharing, fitting) in [(Sharing::ReadOnly, A::REMOTE_READ), (Sharing::ReadWrite, A::REMOTE)] {
            for access in [A::LOCAL, A::REMOTE_READ, A::REMOTE_WRITE, A::REMOTE] {
                let memory = Memory::allocate_shareable(4096, sharing).unwrap();
                let expected = if access == fitting { Reached::File } else { Reached::Process };
                assert_eq!(reached(&region(memory, access)), expected, "{sharing:?} {access}");
            }
        }
        assert_eq!(reached(&region(Memory::from_vec(vec![0; 16]), A::REMOTE)), Reached::Process);
    }
}
