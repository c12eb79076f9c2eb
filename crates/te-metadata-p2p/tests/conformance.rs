//! The directory suite against engines that are asked themselves.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

use std::sync::Arc;

use te_metadata::{BoxFuture, Directory};
use te_metadata_p2p::{OwnDescriptor, P2pDirectory, exchange_handler, own_name};
use te_rpc::{Bind, Handlers, PortChoice, RpcClient, RpcLimits, RpcListener};
use te_segment::{Endpoint, Host, Identity, Incarnation, SegmentDescriptor, SegmentName};
use te_testkit::{DirectoryRig, Publisher, Violation};

struct Peers;

fn client() -> RpcClient {
    RpcClient::new(RpcLimits::default())
}

impl DirectoryRig for Peers {
    /// An engine with a listener of its own; the wish cannot be part of a name that is an address.
    fn publisher(&self, _wish: &str) -> BoxFuture<'_, Result<Publisher, Violation>> {
        Box::pin(async {
            let host: Host = "127.0.0.1".parse()?;
            let bind = Bind { host: host.clone(), port: PortChoice::Fixed(0) };
            let failed = |error: te_rpc::RpcError| Violation::new(error.to_string());
            let listener = RpcListener::bind(bind).await.map_err(failed)?;
            let port = listener.port();
            let own = OwnDescriptor::default();
            let handlers = Handlers {
                metadata: Some(Arc::new(exchange_handler(own.provider()))),
                ..Handlers::default()
            };
            let server = listener.serve(handlers, RpcLimits::default());
            let name = own_name(&host, port).map_err(|error| Violation::new(error.to_string()))?;
            let location: Endpoint = name.as_str().parse()?;
            Ok(Publisher {
                directory: Arc::new(P2pDirectory::serving(client(), own)),
                name,
                location: location.into(),
                keep: Box::new(server),
            })
        })
    }

    fn reader(&self) -> BoxFuture<'_, Result<Arc<dyn Directory>, Violation>> {
        Box::pin(async {
            // Owners answer a te engine with everything, so it says that it is one.
            let identity = Identity::Te { incarnation: Incarnation::from_bits(1), control: None };
            let reader =
                SegmentDescriptor::builder(SegmentName::new("127.0.0.1:1")?).identity(identity).build()?;
            let own = OwnDescriptor::default();
            own.publish(Arc::new(reader));
            Ok(Arc::new(P2pDirectory::serving(client(), own)) as Arc<dyn Directory>)
        })
    }

    /// An engine that is not there and one that does not answer look the same.
    fn states_absence(&self) -> bool {
        false
    }
}

te_testkit::directory_conformance!(Peers);
