//! Shared-memory transport of the te transfer engine, between processes of one host. The initiator copies to and from the
//! target's memory itself: through a mapping where the memory lies in a file without a name
//! ([`te_memory::Memory::allocate_shareable`]), else through the kernel (`process_vm_readv`, `process_vm_writev`) where that
//! is permitted. It knows no names and no metadata, and moves host memory only.
//!
//! # Quick start
//!
//! ```no_run
//! use te_transport::{Context, Install};
//! use te_transport_shm::{Shm, ShmConfig};
//!
//! fn install(context: &Context) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut config = ShmConfig::default();
//!     config.set("threads", "4")?;
//!     let transport = Shm::new(config).start(context)?;
//!     println!("socket {}", transport.socket());
//!     Ok(())
//! }
//! ```
//!
//! # Guarantees
//!
//! * **Locality is proven**, by numbers that travel over a Unix socket and through a page of memory that both sides map.
//! * **Requests reach whom they mean.** The hello names both lives, each buffer is asked for by its registration: another
//!   life is [`te_transport::FailureKind::StaleIncarnation`], a withdrawn buffer [`te_transport::FailureKind::BufferGone`].
//! * **A withdrawn buffer is touched by nobody**: each piece of a copy is made under a mark in the shared page that the
//!   target waits for. A stopped process that holds it up is named; one that ends lets go.
//! * **Access is the kernel's business** where memory is mapped: what must not be written cannot be mapped to write. Memory
//!   that may be written and not read is not mapped at all. Between processes without a mapping, the kernel knows only
//!   whole processes: access is checked by the initiator's engine.
//! * **No peer can raise a signal here.** Files whose size is not sealed, or is too small, are refused.
//! * **A failed request touches nothing any more**, on either side, once it is reported: copies stop between pieces of
//!   1 MiB. So a WRITE moves to another path without asking the target ([`te_transport::Fencing::Immediate`]).
//! * **One silent peer delays nobody**: each has a thread of its own, and copies never wait for a peer.
//!
//! # Failure behaviour
//!
//! Connections are made on demand and again after they end. A slice that has not begun waits for the next one, twice at
//! most; one that has begun fails as `ConnectionLost`. Processes of other users are turned away, those of the same user are
//! trusted as far as the kernel trusts them with each other: they could read each other's memory without this crate.
//!
//! The frames are in [`mod@frame`], the page and the reasons in `docs/wire/shm.md` and
//! `docs/decisions/0004-shared-memory.md`.

mod backend;
mod client;
mod config;
mod counters;
mod error;
pub mod frame;
mod hold;
mod map;
mod offer;
mod page;
mod process;
mod server;
mod socket;
mod sync;

pub use backend::{Shm, ShmTransport};
pub use config::ShmConfig;
pub use counters::ShmCounters;
pub use te_transport::ConfigError;
