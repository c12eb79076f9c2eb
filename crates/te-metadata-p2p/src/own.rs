//! The descriptor this engine hands out.

use std::{sync::Arc, time::SystemTime};

use arc_swap::ArcSwapOption;
use te_metadata::format_timestamp;
use te_rpc::message::NULL_BODY;
use te_segment::{CompatProtocol, DescriptorError, EncodeOptions, SegmentDescriptor, SegmentName};

use crate::exchange::Provider;

/// The current descriptor of this engine, one atomic pointer shared by cloning.
///
/// Empty until something is published; then requests are answered with it, each in the terms of who asks.
#[derive(Clone, Debug, Default)]
pub struct OwnDescriptor {
    current: Arc<ArcSwapOption<SegmentDescriptor>>,
    compat: Option<CompatProtocol>,
}

impl OwnDescriptor {
    /// Answers requesters whose own record is about neither `tcp` nor `rdma` with this kind of record. Without it:
    /// RDMA if the descriptor names a NIC, else TCP.
    pub fn with_default_compat(self, compat: CompatProtocol) -> Self {
        Self { compat: Some(compat), ..self }
    }

    /// The descriptor, if one is published.
    pub fn current(&self) -> Option<Arc<SegmentDescriptor>> {
        self.current.load_full()
    }

    /// Hands out this descriptor from now on.
    pub fn publish(&self, descriptor: Arc<SegmentDescriptor>) {
        self.current.store(Some(descriptor));
    }

    /// Hands out nothing from now on, if the name is the one published.
    pub fn withdraw(&self, name: &SegmentName) {
        self.current.rcu(|current| current.clone().filter(|descriptor| descriptor.name() != name));
    }

    /// What a peer is sent when this engine asks it: the own descriptor without buffers, extension included. A
    /// reference engine ignores it; a te peer learns from it how to answer.
    pub fn request_body(&self) -> String {
        let bare = |descriptor: Arc<SegmentDescriptor>| {
            let mut builder = SegmentDescriptor::builder(descriptor.name().clone());
            builder = builder.identity(descriptor.identity().clone());
            if let Some(version) = descriptor.version() {
                builder = builder.version(version);
            }
            if let Some(tcp) = descriptor.tcp() {
                builder = builder.tcp(tcp.clone());
            }
            let compat = self.default_compat(&descriptor);
            encode(&builder.build()?, compat, true)
        };
        text_or_null(self.current().map(bare))
    }

    /// The answer to a metadata request; see [`Provider`].
    pub fn answer(&self, compat: Option<CompatProtocol>, extension: bool) -> String {
        let answer = |descriptor: Arc<SegmentDescriptor>| {
            let compat = compat.unwrap_or_else(|| self.default_compat(&descriptor));
            encode(&descriptor, compat, extension)
        };
        text_or_null(self.current().map(answer))
    }

    /// [`answer`](Self::answer) as a function, for [`exchange_handler`](crate::exchange_handler).
    pub fn provider(&self) -> Provider {
        let own = self.clone();
        Arc::new(move |compat, extension| own.answer(compat, extension))
    }

    /// Length in bytes of the largest answer that this descriptor would give.
    pub(crate) fn encoded_len(&self, descriptor: &SegmentDescriptor) -> Result<usize, DescriptorError> {
        Ok(encode(descriptor, self.default_compat(descriptor), true)?.len())
    }

    fn default_compat(&self, descriptor: &SegmentDescriptor) -> CompatProtocol {
        let natural =
            if descriptor.devices().is_empty() { CompatProtocol::Tcp } else { CompatProtocol::Rdma };
        self.compat.unwrap_or(natural)
    }
}

fn encode(
    descriptor: &SegmentDescriptor,
    compat: CompatProtocol,
    extension: bool,
) -> Result<String, DescriptorError> {
    let timestamp = format_timestamp(SystemTime::now());
    let mut text = descriptor.encode(&EncodeOptions { compat, extension, timestamp })?;
    text.push('\n');
    Ok(text)
}

fn text_or_null(text: Option<Result<String, DescriptorError>>) -> String {
    match text {
        Some(Ok(text)) => return text,
        Some(Err(error)) => {
            tracing::warn!(target: "te::metadata", %error, "own descriptor cannot be encoded");
        }
        None => {}
    }
    String::from_utf8_lossy(NULL_BODY).into_owned()
}
