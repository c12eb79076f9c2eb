//! From a name and settings to a running engine.

#[cfg(test)]
mod tests;
mod transports;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use te_engine::{Bound, Engine, EngineConfig, Error, ErrorKind, Limits, Naming, Result, RuntimeChoice};
use te_metadata::{Directory, HolderProbe, Keys, MetadataStore, NameRule, StoreDirectory};
use te_rpc::{PortChoice, RpcHandler};
use te_segment::{Host, SegmentName, TransportKind};
use te_transport::{IfAvailable, Install, PortRange};
use te_transport_local::LocalGroup;

use crate::address::{AddressError, choose_address, interfaces};
use crate::metadata::{self, MetadataUrl, host_and_port};
use crate::settings::{Count, Origin, Settings};

/// Starts building an engine. See [`EngineBuilder`].
///
/// `name` is what peers open it by if there is a metadata store. Without one (`P2PHANDSHAKE`, the default) the name
/// is made of the address, and what is given here is the address to advertise, `HOST` or `HOST:PORT`; empty for the
/// only routable address of this host.
pub fn builder(name: impl Into<String>) -> EngineBuilder {
    EngineBuilder {
        name: name.into(),
        settings: Settings::default(),
        failure: None,
        directory: DirectoryChoice::Url,
        transports: Vec::new(),
        local_group: None,
        runtime: RuntimeChoice::Owned,
    }
}

/// Builds an engine. Nothing happens, and nothing is read, before [`build`](Self::build).
///
/// ```
/// # async fn example() -> te::Result<()> {
/// let engine = te::builder("10.0.0.7").set("tcp.connections_per_peer", "8").build().await?;
/// # drop(engine); Ok(()) }
/// ```
#[must_use = "a builder does nothing until build is called"]
pub struct EngineBuilder {
    name: String,
    settings: Settings,
    /// The first mistake; building reports it.
    failure: Option<Error>,
    directory: DirectoryChoice,
    transports: Vec<Box<dyn Install>>,
    local_group: Option<LocalGroup>,
    runtime: RuntimeChoice,
}

/// Where segments are published and found.
enum DirectoryChoice {
    /// What the metadata URL says.
    Url,
    /// A directory of the caller's.
    Given(Arc<dyn Directory>),
    /// A directory over a store of the caller's, made when the rest is known.
    Over(Box<MakeDirectory>),
}

type MakeDirectory = dyn FnOnce(Keys, Duration, Arc<dyn HolderProbe>) -> Arc<dyn Directory> + Send;

/// A directory that holds its names under leases and asks other holders.
fn over<S: MetadataStore + 'static>(
    store: S,
    keys: Keys,
    lease: Duration,
    probe: Arc<dyn HolderProbe>,
) -> Arc<dyn Directory> {
    Arc::new(StoreDirectory::new(store, keys).with_lease(lease).with_probe(probe))
}

/// A directory, how names look in it, and what answers peers that ask this engine.
type Found = (Arc<dyn Directory>, Option<Arc<dyn RpcHandler>>);

const OPERATION: &str = "configure the engine";

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Config, OPERATION, error.to_string()).with_source(error)
}

impl EngineBuilder {
    /// Where segments are published and found: `P2PHANDSHAKE`, `p2p://HOST[:PORT]` or the URL of a store, such as
    /// `etcd://10.0.0.1:2379`, `redis://10.0.0.1` or `http://10.0.0.1:8080/metadata`.
    pub fn metadata(self, url: &str) -> Self {
        match MetadataUrl::from_str(url) {
            Ok(url) => self.change(|settings| settings.metadata.set(url)),
            Err(error) => self.fail(invalid(error)),
        }
    }

    /// The address peers are told.
    pub fn advertise(self, host: &str) -> Self {
        self.set("advertise", host)
    }

    /// The address listeners bind, `0.0.0.0` or `::` for every interface. The advertised one unless given.
    pub fn bind(self, host: &str) -> Self {
        self.set("bind", host)
    }

    /// Sets one setting from text. A mistake is reported by [`build`](Self::build).
    pub fn set(mut self, key: &str, value: &str) -> Self {
        match self.settings.set(key, value, Origin::Builder) {
            Ok(()) => self,
            Err(error) => self.fail(invalid(error)),
        }
    }

    /// Takes every value that `settings` states.
    pub fn settings(self, settings: &Settings) -> Self {
        self.change(|own| own.overlay(settings))
    }

    /// Publishes to and resolves from a directory of the caller's, whatever the metadata URL says.
    pub fn directory(mut self, directory: Arc<dyn Directory>) -> Self {
        self.directory = DirectoryChoice::Given(directory);
        self
    }

    /// Publishes to and resolves from a store of the caller's, whatever the metadata URL says. For tests, a
    /// `te_metadata::MemoryStore` that the engines of one process share. A name in it has one live holder, and records
    /// vanish within `metadata.lease` of the engine's end, if the store has leases.
    pub fn store(mut self, store: impl MetadataStore + 'static) -> Self {
        self.directory =
            DirectoryChoice::Over(Box::new(|keys, lease, probe| over(store, keys, lease, probe)));
        self
    }

    /// Installs a transport of the caller's, besides the ones in the settings.
    pub fn transport(mut self, transport: Box<dyn Install>) -> Self {
        self.transports.push(transport);
        self
    }

    /// Shares memory with the other engines of this process that are given the same group: they copy to and from each other's
    /// registered memory directly, which comes before every other path. Engines of one process without a common group are
    /// peers like any others. An explicit list of transports has to name `local`.
    pub fn local_group(mut self, group: &LocalGroup) -> Self {
        self.local_group = Some(group.clone());
        self
    }

    /// Runs control work on a runtime of the caller's, with I/O and time enabled, which must outlive the engine.
    pub fn runtime(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.runtime = RuntimeChoice::Lent(runtime);
        self
    }

    fn change(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    fn fail(mut self, error: Error) -> Self {
        self.failure.get_or_insert(error);
        self
    }

    /// Binds, installs the transports, serves control requests and publishes an empty segment.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] with a [`SettingsError`](crate::settings::SettingsError), [`MetadataError`](crate::metadata::MetadataError) or
    /// [`AddressError`] as its source, or when an address cannot be bound; [`ErrorKind::Transport`] when a transport
    /// cannot start; [`ErrorKind::Name`] and [`ErrorKind::MetadataUnavailable`] when the segment cannot be published.
    /// Nothing is left running then.
    pub async fn build(self) -> Result<Engine> {
        let Self { name, settings, failure, directory, mut transports, local_group, runtime } = self;
        let group = local_group.as_ref();
        if let Some(failure) = failure {
            return Err(failure);
        }
        settings.validate().map_err(invalid)?;
        let by_url = matches!(directory, DirectoryChoice::Url);
        if by_url {
            settings.metadata.get().check().map_err(invalid)?;
        }
        let chosen = transports::chosen(&settings, group)?;
        let by_address = match &directory {
            DirectoryChoice::Url => matches!(settings.metadata.get(), MetadataUrl::Peer { .. }),
            DirectoryChoice::Given(directory) => directory.name_rule() == NameRule::HostPort,
            DirectoryChoice::Over(_) => false,
        };
        let naming = if by_address {
            Naming::Peer
        } else {
            let name = SegmentName::new(&name).map_err(|error| {
                Error::new(ErrorKind::Name, OPERATION, error.to_string()).with_source(error)
            })?;
            Naming::Store(name)
        };
        let place = Place::choose(&settings, by_url, if by_address { &name } else { "" })?;
        let config = engine_config(&settings, naming, &place);
        tracing::info!(
            target: "te", advertise = %place.advertise, reason = %place.reason, "chose the advertised address"
        );
        let bound = Bound::bind(config, runtime).await?;
        let keys = Keys::new(settings.metadata_cluster.get().clone());
        let lease = *settings.metadata_lease.get();
        let (directory, exchange) = match directory {
            DirectoryChoice::Given(directory) => (directory, None),
            DirectoryChoice::Over(make) => (make(keys, lease, bound.holder_probe()), None),
            DirectoryChoice::Url if by_address => by_peers(&bound)?,
            DirectoryChoice::Url => {
                let deadline = Instant::now() + *settings.control_request.get();
                let opened = metadata::open(settings.clone(), Some(bound.local().incarnation()), deadline);
                let store = bound.run("open the metadata store", opened).await?;
                (over(store, keys, lease, bound.holder_probe()), None)
            }
        };
        let by_name = settings.transports.get().is_some();
        let installs = chosen.into_iter().flat_map(|word| transports::install(&word, &settings, group));
        // TCP is what everybody falls back to; without it something is wrong that must be said.
        let optional = |install: &dyn Install| !by_name && install.kind() != TransportKind::TCP;
        transports.extend(installs.map(|install| -> Box<dyn Install> {
            if optional(&*install) { Box::new(IfAvailable(install)) } else { install }
        }));
        bound.start(directory, exchange, transports).await
    }
}

/// The address and port of an engine, and why.
struct Place {
    advertise: Host,
    bind: Option<Host>,
    port: Option<u16>,
    reason: String,
}

impl Place {
    /// The first that says something counts: the settings, the metadata URL, the name, the table of interfaces.
    fn choose(settings: &Settings, by_url: bool, name: &str) -> Result<Self> {
        let named = match name {
            "" => None,
            name => Some(host_and_port(name).map_err(|error| {
                Error::new(
                    ErrorKind::Name,
                    OPERATION,
                    format!("{name:?} is no address to advertise: {error}"),
                )
                .with_source(error)
            })),
        };
        let (url_host, url_port) = match settings.metadata.get() {
            MetadataUrl::Peer { host, port } if by_url => (host.clone(), *port),
            _ => (None, None),
        };
        // A name beside a URL that states the address is a label and need be no address.
        let (name_host, name_port) = match (&url_host, named) {
            (None, Some(named)) => {
                let (host, port) = named?;
                (Some(host), port)
            }
            _ => (None, None),
        };
        let stated = [
            (settings.advertise.get().clone(), settings.advertise.origin().to_string()),
            (url_host.clone(), "metadata URL".to_owned()),
            (name_host.clone(), "name".to_owned()),
        ];
        let wildcard = stated.iter().filter_map(|(host, _)| host.clone()).find(Host::is_unspecified);
        let stated = stated
            .into_iter()
            .find_map(|(host, reason)| Some((host.filter(|host| !host.is_unspecified())?, reason)));
        let (advertise, reason) = match stated {
            Some(stated) => stated,
            None => {
                let table = interfaces(settings.interfaces.get())
                    .map_err(|error| invalid(AddressError::Table { cause: error.to_string() }))?;
                let choice = choose_address(&table).map_err(invalid)?;
                (choice.host, choice.reason)
            }
        };
        let port = match *settings.control_port.get() {
            0 => url_port.or(name_port),
            port => Some(port),
        };
        // A wildcard where an address is due means: every interface, and tell peers a real address.
        Ok(Self { advertise, bind: settings.bind.get().clone().or(wildcard), port, reason })
    }
}

fn engine_config(settings: &Settings, naming: Naming, place: &Place) -> EngineConfig {
    let mut config = EngineConfig::new(naming, place.advertise.clone());
    config.bind = place.bind.clone();
    config.ports = PortRange { min: *settings.port_min.get(), max: *settings.port_max.get() };
    config.control_port = match place.port {
        Some(port) => PortChoice::Fixed(port),
        None => PortChoice::Free { min: config.ports.min, max: config.ports.max },
    };
    config.limits = limits(settings);
    config
}

/// A count as a size of this host; ranges are far below what would not fit.
fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn limits(settings: &Settings) -> Limits {
    let count = |Count(count): &Count| size(*count);
    let mut limits = Limits::default();
    limits.request_deadline = *settings.request_deadline.get();
    limits.silence = *settings.request_silence.get();
    limits.connect = *settings.control_connect.get();
    limits.control_request = *settings.control_request.get();
    limits.drain = *settings.memory_drain.get();
    limits.announce = *settings.memory_announce.get();
    limits.lease_ttl = *settings.metadata_lease.get();
    limits.batch = count(settings.request_batch.get());
    limits.regions = count(settings.memory_regions.get());
    limits.notify_payload = size(*settings.notify_bytes.get());
    limits.notify_queue = count(settings.notify_queue.get());
    limits.control_frame = size(*settings.control_frame.get());
    limits.connections = count(settings.control_connections.get());
    limits
}

#[cfg(feature = "p2p")]
fn by_peers(bound: &Bound) -> Result<Found> {
    use te_metadata_p2p::{OwnDescriptor, P2pDirectory, exchange_handler};

    let own = OwnDescriptor::default();
    let directory = Arc::new(P2pDirectory::serving(bound.rpc().clone(), own.clone()));
    let local = bound.local().clone();
    // Answered from the segment itself: a registered buffer is visible at once, not when it is next published.
    let exchange = exchange_handler(Arc::new(move |compat, extension| {
        let compat = compat.unwrap_or(te_segment::CompatProtocol::Tcp);
        let text = own.current().and_then(|_| local.encode(compat, extension).ok());
        text.as_deref().unwrap_or("null").into()
    }));
    Ok((directory, Some(Arc::new(exchange))))
}

#[cfg(not(feature = "p2p"))]
fn by_peers(_bound: &Bound) -> Result<Found> {
    // The metadata URL has been checked, so that this is not reached.
    Err(Error::new(ErrorKind::Config, OPERATION, "needs the Cargo feature `p2p`"))
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}
