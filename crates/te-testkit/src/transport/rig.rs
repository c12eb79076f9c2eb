//! What the conformance suite asks of whoever runs it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use te_segment::{BufferDescriptor, DescriptorBuilder, Host, SegmentDescriptor, TransportKind, Via};
use te_transport::{Context, Install};

use crate::link::{Link, TcpProxy};
use crate::report::Violation;

/// Which of the two engines of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The one that submits.
    Near,
    /// The one that serves.
    Far,
}

/// What a transport's protocol cannot do although its contract would allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// The target answers a refused request. Without it the connection breaks, and the failure says so.
    pub explicit_refusals: bool,
    /// A WRITE can be confirmed without the right to read the range back.
    pub writes_without_reading: bool,
    /// A refused request has touched nothing. Without it, those parts of a request may be done that the target permits.
    pub whole_refusals: bool,
    /// How much later than its deadline a slice may be resolved, and how long the reaction to a cancellation, a cut or
    /// a shutdown may take. Generous, for hosts under load; a hang is far longer.
    pub grace: Duration,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            explicit_refusals: true,
            writes_without_reading: true,
            whole_refusals: true,
            grace: Duration::from_millis(1500),
        }
    }
}

/// Builds what the conformance suite tests: two instances of one transport in one process, that do not know of each
/// other except through descriptors.
pub trait Rig: Send + Sync + 'static {
    /// A backend for one side, not installed yet.
    fn backend(&self, side: Side) -> Box<dyn Install>;

    /// Whether areas lie in memory that other processes can map. Default: they do not.
    fn shareable(&self) -> bool {
        false
    }

    /// What the protocol cannot do. Default: it can do everything.
    fn profile(&self) -> Profile {
        Profile::default()
    }

    /// Changes the context of one side before installation. Default: loopback, ports 15000 to 17000.
    fn context(&self, side: Side, context: Context) -> Context {
        let _ = side;
        context
    }

    /// Changes the far side's descriptor before the near side sees it, for example to an older framing.
    ///
    /// # Errors
    ///
    /// When it cannot be changed so.
    fn present(&self, descriptor: SegmentDescriptor) -> Result<SegmentDescriptor, Violation> {
        Ok(descriptor)
    }

    /// A controlled way to the far side, without which stalls and cuts are not tested.
    ///
    /// # Errors
    ///
    /// When there should be one and could not be made.
    fn link(&self, far: &SegmentDescriptor) -> Result<Option<Link>, Violation> {
        let _ = far;
        Ok(None)
    }
}

/// The same descriptor with changes: everything is copied to a builder, to which `change` adds.
///
/// # Errors
///
/// What the builder says.
pub fn redescribe(
    original: &SegmentDescriptor,
    change: impl FnOnce(DescriptorBuilder) -> DescriptorBuilder,
) -> Result<SegmentDescriptor, Violation> {
    redescribe_buffers(original, original.buffers().to_vec(), change)
}

/// Like [`redescribe`], with other buffers.
pub(crate) fn redescribe_buffers(
    original: &SegmentDescriptor,
    buffers: Vec<BufferDescriptor>,
    change: impl FnOnce(DescriptorBuilder) -> DescriptorBuilder,
) -> Result<SegmentDescriptor, Violation> {
    let mut builder = SegmentDescriptor::builder(original.name().clone())
        .identity(original.identity().clone())
        .topology(original.topology().clone())
        .buffers(buffers);
    if let Some(version) = original.version() {
        builder = builder.version(version);
    }
    if let Some(tcp) = original.tcp() {
        builder = builder.tcp(tcp.clone());
    }
    if let Some(name) = original.rdma_server_name() {
        builder = builder.rdma_server_name(name.to_owned());
    }
    if let Some(locality) = original.locality() {
        builder = builder.locality(locality.clone());
    }
    for device in original.devices() {
        builder = builder.device(device.clone());
    }
    for (kind, data) in original.all_data() {
        builder = builder.data(kind.clone(), data.clone());
    }
    for file in original.files() {
        builder = builder.file(file.clone());
    }
    Ok(change(builder).build()?)
}

/// The same descriptor with the buffers that RDMA reaches, and of their keys those of one NIC: a peer that is reached over one
/// rail only.
///
/// # Errors
///
/// What the descriptor's builder says, as where no buffer has a key of that NIC.
pub fn over_rail(original: &SegmentDescriptor, nic: &str) -> Result<SegmentDescriptor, Violation> {
    let mut buffers = Vec::new();
    for buffer in original.buffers() {
        let Some(mut via) = buffer.via_transport(&TransportKind::RDMA).cloned() else { continue };
        match &mut via {
            Via::Rdma { keys } => keys.retain(|name, _| name.as_str() == nic),
            Via::RdmaParts { keys, .. } => keys.retain(|name, _| name.as_str() == nic),
            _ => continue,
        }
        let via = BTreeMap::from([(TransportKind::RDMA, via)]);
        let (range, location) = (buffer.range(), buffer.location().clone());
        buffers.push(BufferDescriptor::new(range, location, buffer.access(), buffer.generation(), via)?);
    }
    redescribe_buffers(original, buffers, |builder| builder)
}

/// A TCP proxy before the far side, and the descriptor that leads through it.
///
/// # Errors
///
/// When the descriptor offers no TCP service with an address, or no port can be bound.
pub fn tcp_link(far: &SegmentDescriptor) -> Result<Link, Violation> {
    let tcp = far.tcp().ok_or_else(|| Violation::new("the far side offers no TCP service"))?;
    let host = tcp.host.as_ref().and_then(Host::ip);
    let host = host.ok_or_else(|| Violation::new("the far side's TCP service has no address"))?;
    let proxy = TcpProxy::start((host, tcp.port.get()).into())?;
    let mut through = tcp.clone();
    through.host = Some(Host::V4(Ipv4Addr::LOCALHOST));
    through.port = NonZeroU16::new(proxy.address().port()).ok_or_else(|| Violation::new("no port"))?;
    let descriptor = redescribe(far, |builder| builder.tcp(through))?;
    Ok(Link { descriptor: Arc::new(descriptor), control: Arc::new(proxy) })
}
