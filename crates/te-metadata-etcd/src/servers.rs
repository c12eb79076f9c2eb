//! The members of the cluster: which one is used, and when another.

use std::{
    future::Future,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use etcd_client::{Client, ConnectOptions};
use te_metadata::{StoreErrorKind, backend::Backoff};
use tokio::{sync::OnceCell, time};

use crate::{EtcdConfig, failure::Failure};

/// A server that does not answer a ping is given up: after this long without traffic a busy connection is pinged…
const PING_AFTER: Duration = Duration::from_secs(10);
/// …and after this long without the answer it is closed.
const PING_ANSWER: Duration = Duration::from_secs(3);

/// One member. Its client is made at first use and then kept: it reconnects by itself.
struct Server {
    address: String,
    url: String,
    client: OnceCell<Client>,
}

pub(crate) struct Servers {
    servers: Vec<Server>,
    /// The one that answered last.
    current: AtomicUsize,
    options: ConnectOptions,
    switch_after: Duration,
    patience: Duration,
}

impl Servers {
    pub(crate) fn new(config: &EtcdConfig) -> Self {
        let scheme = if config.tls { "https" } else { "http" };
        let server = |endpoint: &te_segment::Endpoint| Server {
            address: endpoint.to_string(),
            url: format!("{scheme}://{endpoint}"),
            client: OnceCell::new(),
        };
        Self {
            servers: config.endpoints.iter().map(server).collect(),
            current: AtomicUsize::new(0),
            options: options(config),
            switch_after: config.switch_after,
            patience: config.patience,
        }
    }

    /// Runs `attempt` at one server after the other, the one that answered last first, until one of them answers,
    /// the patience is over or the deadline passes. `attempt` is told how many attempts were made before.
    pub(crate) async fn call<T, F, A>(&self, deadline: Instant, attempt: F) -> Result<T, StoreErrorKind>
    where
        F: Fn(Client, u32) -> A + Send + Sync,
        A: Future<Output = Result<T, Failure>> + Send,
        T: Send,
    {
        let deadline = time::Instant::from_std(deadline);
        let patience = (time::Instant::now() + self.patience).min(deadline);
        let mut backoff = Backoff::new();
        let mut made = 0;
        loop {
            let first = self.current.load(Ordering::Relaxed);
            let mut said = None;
            for offset in 0..self.servers.len() {
                let now = time::Instant::now();
                if now >= deadline {
                    return Err(StoreErrorKind::DeadlineExceeded);
                }
                let until = self.share(now, deadline, offset);
                let index = (first + offset) % self.servers.len();
                let Some(server) = self.servers.get(index) else { continue };
                let answer = time::timeout_at(until, async {
                    let client = server.client(&self.options).await?;
                    attempt(client, made).await
                });
                said = match answer.await {
                    Ok(Err(Failure::Outage(words))) => Some(format!("{}: {words}", server.address)),
                    Ok(Err(Failure::LeaseGone)) => Some(format!("{}: the lease ended", server.address)),
                    Ok(Err(Failure::Compacted)) => {
                        Some(format!("{}: the revision asked for is not there", server.address))
                    }
                    Ok(answer) => {
                        self.current.store(index, Ordering::Relaxed);
                        return answer.map_err(Self::kind);
                    }
                    Err(_) if until >= deadline => None,
                    Err(_) => Some(format!("{}: no answer in time", server.address)),
                };
                made += 1;
                tracing::debug!(server = server.address, answer = said.as_deref(), "etcd attempt failed");
            }
            let pause = backoff.pause();
            match said {
                None => return Err(StoreErrorKind::DeadlineExceeded),
                Some(detail) if time::Instant::now() + pause >= patience => {
                    return Err(StoreErrorKind::Unavailable { detail });
                }
                Some(_) => time::sleep(pause).await,
            }
        }
    }

    /// Until when the server at this place in the round is waited for: all of them get an equal part of what is
    /// left, but no longer than it takes to suspect one.
    fn share(&self, now: time::Instant, deadline: time::Instant, offset: usize) -> time::Instant {
        let left = u32::try_from(self.servers.len() - offset).unwrap_or(u32::MAX).max(1);
        let rest = deadline.saturating_duration_since(now);
        if self.servers.len() == 1 {
            return deadline;
        }
        // The last of the round gets all that is left of a short time: no other could use it.
        now + (rest / left).min(self.switch_after)
    }

    fn kind(failure: Failure) -> StoreErrorKind {
        match failure {
            Failure::Final(kind) => kind,
            Failure::Outage(detail) => StoreErrorKind::Unavailable { detail },
            Failure::LeaseGone => StoreErrorKind::Unavailable { detail: "the lease ended".to_owned() },
            Failure::Compacted => {
                StoreErrorKind::Unavailable { detail: "the revision is not there".to_owned() }
            }
        }
    }
}

impl Server {
    async fn client(&self, options: &ConnectOptions) -> Result<Client, Failure> {
        let connect = || async { Client::connect([&self.url], Some(options.clone())).await };
        let client = self.client.get_or_try_init(connect).await;
        client.cloned().map_err(|error| match error {
            // Nothing was sent yet: the certificates cannot be used.
            etcd_client::Error::TransportError(error) => {
                Failure::invalid(format!("client for {} cannot be made: {error:?}", self.address))
            }
            error => error.into(),
        })
    }
}

fn options(config: &EtcdConfig) -> ConnectOptions {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(config.connect)
        // Not while idle: servers close connections that ping without a call going on.
        .with_keep_alive(PING_AFTER, PING_ANSWER)
        .with_keep_alive_while_idle(false)
        // A member that is cut off from its cluster says so instead of being silent.
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some((name, password)) = &config.user {
        options = options.with_user(name, password.reveal());
    }
    #[cfg(feature = "tls")]
    if config.tls {
        options = options.with_tls(tls(config));
    }
    options
}

#[cfg(feature = "tls")]
fn tls(config: &EtcdConfig) -> etcd_client::TlsOptions {
    let mut tls = etcd_client::TlsOptions::new();
    tls = match &config.ca_pem {
        Some(pem) => tls.ca_certificate(etcd_client::Certificate::from_pem(pem)),
        None => tls.with_enabled_roots(),
    };
    if let Some((certificates, key)) = &config.identity {
        tls = tls.identity(etcd_client::Identity::from_pem(certificates, key.reveal()));
    }
    tls
}
