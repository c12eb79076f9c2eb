//! Starting an engine: bind, then start. Between the two, the local segment exists and its name is known, so that
//! whoever serves or publishes it can be built.

use std::sync::Arc;
use std::time::Instant;

use rand::TryRng;
use rand::rngs::SysRng;
use te_memory::{ForkMark, RegionTable};
use te_metadata::{Directory, HolderProbe, SegmentCache};
use te_rpc::{Bind, RpcClient, RpcHandler, RpcLimits, RpcListener};
use te_segment::{Endpoint, Host, Incarnation, RpcLocation, SegmentName};
use te_transport::{Context, Install, InstallError, Transport};
use tokio::sync::watch;

use crate::bootstrap::{BootstrapParts, BootstrapTable};
use crate::buffer::TransportSet;
use crate::config::{EngineConfig, Naming};
use crate::control;
use crate::core::{Core, Parts};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::hello::ControlProbe;
use crate::inbox::Inbox;
use crate::local::LocalSegment;
use crate::peers::{Fences, Peers, PeersParts, native_limits};
use crate::publisher::{self, Progress, Republish, Wanted};
use crate::runtime::{Runtime, RuntimeChoice};
use crate::shutdown::Running;

/// An engine whose control listener is bound and whose segment has a name, but which serves nothing yet.
pub struct Bound {
    config: EngineConfig,
    runtime: Arc<Runtime>,
    listener: RpcListener,
    local: Arc<LocalSegment>,
    rpc: RpcClient,
    bind: Host,
}

impl Bound {
    /// Binds the control listener.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a wildcard as advertised address, or when no port can be bound.
    pub async fn bind(config: EngineConfig, runtime: RuntimeChoice) -> Result<Self> {
        if config.advertise.is_unspecified() {
            let cause = format!("{} is a wildcard; peers cannot connect to it", config.advertise);
            return Err(Error::new(ErrorKind::Config, "choose the advertised address", cause));
        }
        let runtime = Arc::new(Runtime::start(runtime)?);
        let bind = config.bind.clone().unwrap_or_else(|| config.advertise.clone());
        let rule = Bind { host: bind.clone(), port: config.control_port };
        let operation = "bind the control listener";
        let listener = runtime
            .run(operation, async move {
                RpcListener::bind(rule).await.map_err(|error| {
                    let retry =
                        if error.retry() == te_rpc::Retry::CanHelp { Retry::Later } else { Retry::No };
                    Error::new(ErrorKind::Config, operation, error.to_string())
                        .with_retry(retry)
                        .with_source(error)
                })
            })
            .await?;
        let invalid = |cause: String| Error::new(ErrorKind::Name, "name the segment", cause);
        let control = Endpoint::new(config.advertise.clone(), listener.port())
            .map_err(|error| invalid(error.to_string()))?;
        let name = match &config.naming {
            Naming::Store(name) => name.clone(),
            Naming::Peer => {
                SegmentName::new(&control.to_string()).map_err(|error| invalid(error.to_string()))?
            }
        };
        // The random numbers of a thread go on from the same place on both sides of a fork.
        let mut bits = [0; size_of::<u128>()];
        SysRng.try_fill_bytes(&mut bits).map_err(|error| {
            Error::new(ErrorKind::Config, "draw the incarnation", error.to_string()).with_source(error)
        })?;
        let incarnation = Incarnation::from_bits(u128::from_ne_bytes(bits));
        let regions = RegionTable::new(config.limits.regions);
        let local = Arc::new(LocalSegment::new(name, incarnation, control, regions));
        let rpc = RpcClient::new(rpc_limits(&config));
        Ok(Self { config, runtime, listener, local, rpc, bind })
    }

    /// The local segment. It always has a descriptor.
    #[must_use]
    pub fn local(&self) -> &Arc<LocalSegment> {
        &self.local
    }

    /// A client for control requests, with this engine's limits.
    #[must_use]
    pub fn rpc(&self) -> &RpcClient {
        &self.rpc
    }

    /// Asks the holders of names whether they are alive, for a directory over a store.
    #[must_use]
    pub fn holder_probe(&self) -> Arc<dyn HolderProbe> {
        Arc::new(ControlProbe::new(self.rpc.clone()))
    }

    /// Runs a future on the control runtime, for a directory that has to be asked something before the start; can be
    /// awaited from any executor.
    ///
    /// # Errors
    ///
    /// What the future ends with; [`ErrorKind::Shutdown`] if the runtime ended first.
    pub async fn run<T, F>(&self, operation: &str, future: F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        self.runtime.run(operation, future).await
    }

    /// Installs the transports, serves control requests and publishes the empty segment, in this order: what is
    /// published can be reached. `exchange` answers metadata requests of peers that ask the engine itself.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Transport`] when one cannot be installed, [`ErrorKind::MetadataUnavailable`] or
    /// [`ErrorKind::Name`] when the segment cannot be published. Nothing is left running.
    pub async fn start(
        self,
        directory: Arc<dyn Directory>,
        exchange: Option<Arc<dyn RpcHandler>>,
        transports: Vec<Box<dyn Install>>,
    ) -> Result<Engine> {
        let Self { config, runtime, listener, local, rpc, bind } = self;
        let bootstrap = Arc::new(BootstrapTable::new(BootstrapParts {
            client: rpc.clone(),
            runtime: runtime.handle().clone(),
            directory: directory.clone(),
            own: (local.name().clone(), local.control().clone()),
        }));
        let fences = Arc::new(Fences::new());
        let (wake, woken) = watch::channel(Wanted { version: local.version(), ..Wanted::default() });
        let wake = Arc::new(wake);
        let context = Context {
            name: local.name().clone(),
            incarnation: local.incarnation(),
            regions: local.regions().clone(),
            bind,
            advertise: config.advertise.clone(),
            ports: config.ports,
            bootstrap: bootstrap.clone(),
            admission: fences.clone(),
            publisher: Arc::new(Republish::new(&local, &wake)),
        };
        let installed = install(&local, transports, &context)?;
        let location = RpcLocation::new(local.control());

        let (progress, progressed) = watch::channel(Progress::default());
        let mark = Arc::new(ForkMark::new());
        let inbox = Arc::new(Inbox::new(config.limits.notify_queue, mark.clone()));
        let core = Arc::new_cyclic(|core| {
            let peers = Peers::new(PeersParts {
                core: core.clone(),
                local: local.clone(),
                fences,
                inbox: inbox.clone(),
                limits: config.limits.clone(),
                runtime: runtime.handle().clone(),
            });
            Core::new(Parts {
                mark: mark.clone(),
                limits: config.limits.clone(),
                runtime: runtime.clone(),
                local: local.clone(),
                transports: installed.into(),
                cache: SegmentCache::new(directory.clone()),
                rpc,
                inbox,
                peers,
                wake,
                progress: progressed,
            })
        });
        let handlers = control::handlers(&core, exchange, bootstrap);
        let limits = rpc_limits(&config);
        let timeout = config.limits.control_request;
        // A silent holder of the name has until its lease ends.
        let patience = timeout + directory.claim_patience();
        let started = runtime
            .run("start the engine", async move {
                let server = listener.serve(handlers, limits);
                match publisher::publish_once(&local, directory.as_ref(), &location, patience).await {
                    Ok(version) => progress.send_modify(|progress| progress.published = version),
                    Err(error) => {
                        server.shutdown(Instant::now() + timeout).await;
                        // One of the records may be there, and not every store forgets it by itself.
                        if let Err(left) = directory.close(Instant::now() + timeout).await {
                            tracing::warn!(target: "te::engine", error = %left, "after a failed start");
                        }
                        return Err(error);
                    }
                }
                let publisher =
                    tokio::spawn(publisher::run(local, directory, location, timeout, woken, progress));
                Ok((server, publisher))
            })
            .await;
        match started {
            Ok((server, publisher)) => Ok(Engine::new(Running::new(core, server, publisher))),
            Err(error) => {
                for transport in core.transports().iter() {
                    if let Err(error) = transport.shutdown(Instant::now() + config.limits.drain) {
                        tracing::warn!(target: "te::engine", %error, "after a failed start");
                    }
                }
                runtime.stop();
                Err(error)
            }
        }
    }
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound").field("name", self.local.name()).finish_non_exhaustive()
    }
}

fn rpc_limits(config: &EngineConfig) -> RpcLimits {
    RpcLimits {
        connect: config.limits.connect,
        request: config.limits.control_request,
        max_frame_strangers: config.limits.control_frame,
        max_connections: config.limits.connections,
        native: native_limits(&config.limits),
        ..RpcLimits::default()
    }
}

/// Installs all of them or none.
fn install(
    local: &LocalSegment,
    transports: Vec<Box<dyn Install>>,
    context: &Context,
) -> Result<Vec<Arc<dyn Transport>>> {
    let operation = "install transports";
    if transports.len() > TransportSet::CAPACITY {
        let cause =
            format!("{} transports are over the limit of {}", transports.len(), TransportSet::CAPACITY);
        return Err(Error::new(ErrorKind::Config, operation, cause));
    }
    let mut installed: Vec<Arc<dyn Transport>> = Vec::with_capacity(transports.len());
    for transport in transports {
        let (kind, may_be_missing) = (transport.kind(), transport.may_be_missing());
        let outcome = if installed.iter().any(|other| other.kind() == kind) {
            let cause = "it is installed already".to_owned();
            Err(InstallError::Failed { transport: kind, cause })
        } else {
            transport.install(context)
        };
        match outcome {
            Ok(transport) => installed.push(transport),
            Err(error @ InstallError::Unavailable { .. }) if may_be_missing => {
                tracing::info!(target: "te::engine", %error, "going without");
            }
            Err(error) => {
                for transport in installed.iter().rev() {
                    if let Err(error) = transport.shutdown(Instant::now()) {
                        tracing::warn!(target: "te::engine", %error, "after a failed installation");
                    }
                }
                return Err(Error::new(ErrorKind::Transport, operation, error.to_string()).with_source(error));
            }
        }
    }
    for transport in &installed {
        local.install(transport.clone());
    }
    Ok(installed)
}
