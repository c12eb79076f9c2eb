//! Connections: one for all calls, made anew when it breaks or falls silent.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use parking_lot::Mutex;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, aio::MultiplexedConnection};
use te_metadata::{StoreErrorKind, backend::Backoff};
use tokio::{
    net::TcpStream,
    sync::Mutex as AsyncMutex,
    time::{self, timeout, timeout_at},
};

#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::{RedisConfig, RedisConfigError, failure::Failure};

/// A connection and what is known of it.
#[derive(Clone)]
struct Live {
    number: u64,
    connection: MultiplexedConnection,
}

pub(crate) struct Link {
    pub(crate) config: RedisConfig,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    live: Mutex<Option<Live>>,
    /// Held by the one call that connects; the others wait for it.
    connecting: AsyncMutex<()>,
    numbers: AtomicU64,
    /// When the server last answered or was last connected to.
    heard: Mutex<time::Instant>,
}

impl Link {
    pub(crate) fn new(config: RedisConfig) -> Result<Self, RedisConfigError> {
        config.check()?;
        Ok(Self {
            #[cfg(feature = "tls")]
            tls: if config.tls { Some(Tls::new(&config)?) } else { None },
            config,
            live: Mutex::new(None),
            connecting: AsyncMutex::new(()),
            numbers: AtomicU64::new(0),
            heard: Mutex::new(time::Instant::now()),
        })
    }

    /// Runs `attempt` on the connection, again on a new one if it breaks, until the server answers, the patience is
    /// over or the deadline passes. `attempt` is told how many attempts were made before.
    pub(crate) async fn call<T, F, A>(&self, deadline: Instant, attempt: F) -> Result<T, StoreErrorKind>
    where
        F: Fn(MultiplexedConnection, u32) -> A + Send + Sync,
        A: Future<Output = Result<T, Failure>> + Send,
        T: Send,
    {
        let deadline = time::Instant::from_std(deadline);
        let patience = (time::Instant::now() + self.config.patience).min(deadline);
        let mut backoff = Backoff::new();
        let mut made = 0;
        loop {
            let now = time::Instant::now();
            if now >= deadline {
                return Err(StoreErrorKind::DeadlineExceeded);
            }
            let until = deadline.min(now + self.config.answer);
            let used = Mutex::new(None);
            let answer = timeout_at(until, async {
                let live = self.live().await?;
                *used.lock() = Some(live.number);
                attempt(live.connection, made).await
            });
            let answer = answer.await;
            let used = used.into_inner();
            let said = match answer {
                Err(_) => {
                    self.suspect(used);
                    if until >= deadline {
                        return Err(StoreErrorKind::DeadlineExceeded);
                    }
                    "no answer in time".to_owned()
                }
                Ok(Err(Failure::Broken(words))) => {
                    self.drop_connection(used);
                    words
                }
                Ok(answer) => {
                    *self.heard.lock() = time::Instant::now();
                    match answer {
                        Err(Failure::Later(words)) => words,
                        answer => return answer.map_err(Failure::into_kind),
                    }
                }
            };
            made += 1;
            let detail = format!("{}: {said}", self.config.server);
            tracing::debug!(detail, "redis attempt failed");
            let pause = backoff.pause();
            if time::Instant::now() + pause >= patience {
                return Err(StoreErrorKind::Unavailable { detail });
            }
            time::sleep(pause).await;
        }
    }

    async fn live(&self) -> Result<Live, Failure> {
        if let Some(live) = self.live.lock().clone() {
            return Ok(live);
        }
        let _alone = self.connecting.lock().await;
        if let Some(live) = self.live.lock().clone() {
            return Ok(live);
        }
        let connection = self.connect(AsyncConnectionConfig::new(), ProtocolVersion::RESP2).await?;
        let live = Live { number: self.numbers.fetch_add(1, Ordering::Relaxed), connection };
        *self.live.lock() = Some(live.clone());
        *self.heard.lock() = time::Instant::now();
        Ok(live)
    }

    fn drop_connection(&self, used: Option<u64>) {
        let mut live = self.live.lock();
        if live.as_ref().map(|live| live.number) == used {
            *live = None;
        }
    }

    /// A call ran into its time. That alone says little, its time may have been short; the connection goes if
    /// nothing at all was heard on it for long.
    fn suspect(&self, used: Option<u64>) {
        if self.heard.lock().elapsed() >= self.config.answer {
            self.drop_connection(used);
            *self.heard.lock() = time::Instant::now();
        }
    }

    /// A new connection, logged in.
    pub(crate) async fn connect(
        &self,
        options: AsyncConnectionConfig,
        protocol: ProtocolVersion,
    ) -> Result<MultiplexedConnection, Failure> {
        let connecting = self.open(options.set_response_timeout(None), protocol);
        match timeout(self.config.connect, connecting).await {
            Ok(connection) => connection,
            Err(_) => Err(Failure::Broken("no connection in time".to_owned())),
        }
    }

    async fn open(
        &self,
        options: AsyncConnectionConfig,
        protocol: ProtocolVersion,
    ) -> Result<MultiplexedConnection, Failure> {
        let config = &self.config;
        let mut info = RedisConnectionInfo::default()
            .set_db(i64::from(config.database))
            .set_protocol(protocol)
            .set_skip_set_lib_name();
        if let Some(password) = &config.password {
            info = info.set_password(password.reveal());
        }
        if let Some(user) = &config.user {
            info = info.set_username(user);
        }
        let broken = |error: std::io::Error| Failure::Broken(error.to_string());
        let address = (config.server.host().bare(), config.server.port());
        let stream = TcpStream::connect(address).await.map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let stream = tls.connect(stream).await.map_err(broken)?;
            let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, options).await?;
            // Ends when the last handle of the connection is dropped.
            tokio::spawn(driver);
            return Ok(connection);
        }
        let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, options).await?;
        tokio::spawn(driver);
        Ok(connection)
    }
}

pub(crate) type SharedLink = Arc<Link>;
