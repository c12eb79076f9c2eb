//! `te metad`: a metadata store over HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::context::Context;
use crate::failure::Result;

/// Where to serve, and for whom.
#[derive(Args, Debug)]
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "says which feature is missing"))]
pub(crate) struct MetadArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Keeps everything in this file; without it a restart begins empty
    #[arg(long, value_name = "FILE")]
    persist: Option<PathBuf>,
    /// Serves only who shows the token in this file
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Serves https with this certificate chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key to that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

#[cfg(not(feature = "http"))]
pub(crate) fn run(_context: &Context, _args: &MetadArgs) -> Result<()> {
    crate::usage("te metad needs the Cargo feature `http`, which is not compiled in")
}

#[cfg(feature = "http")]
pub(crate) use serving::run;

#[cfg(feature = "http")]
mod serving {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use serde_json::json;
    use te_metadata_http::server::{MetadataServer, ServerBuilder, ServerError};

    use super::{Context, MetadArgs, Result};
    use crate::command::Stop;
    use crate::failure::Failure;
    use crate::output;

    /// Time for leaving.
    const LEAVE: Duration = Duration::from_millis(1_500);

    pub(crate) fn run(context: &Context, args: &MetadArgs) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|error| Failure::io("cannot start a runtime", &error))?;
        runtime.block_on(serve(context, args))
    }

    async fn serve(context: &Context, args: &MetadArgs) -> Result<()> {
        let mut stop = Stop::caught()?;
        let server = configured(args)?.start().await.map_err(|error| refused(&error))?;
        if context.json {
            output::json(&json!({ "url": server.url() }))?;
        } else {
            output::line(&format!("serving {}", server.url()))?;
        }
        stop.asked().await;
        match server.shutdown(Instant::now() + LEAVE).await {
            // What was acknowledged is on the disk all the same.
            Ok(()) | Err(ServerError::StillBusy) => Ok(()),
            Err(error) => Err(refused(&error)),
        }
    }

    fn refused(error: &ServerError) -> Failure {
        Failure::Other(error.to_string())
    }

    fn configured(args: &MetadArgs) -> Result<ServerBuilder> {
        let mut server = MetadataServer::builder().bind(args.listen);
        if let Some(path) = &args.persist {
            server = server.persist(path);
        }
        if let Some(path) = &args.token_file {
            let text = read(path)?;
            let token = text.trim();
            if token.is_empty() {
                return Err(Failure::Other(format!("{} holds no token", path.display())));
            }
            server = server.token(token);
        }
        match (&args.tls_cert, &args.tls_key) {
            (Some(chain), Some(key)) => with_tls(server, &read(chain)?, &read(key)?),
            _ => Ok(server),
        }
    }

    #[cfg(feature = "tls")]
    #[expect(clippy::unnecessary_wraps, reason = "without the feature it fails")]
    fn with_tls(server: ServerBuilder, chain: &str, key: &str) -> Result<ServerBuilder> {
        Ok(server.tls(te_metadata_http::server::ServerTls::new(chain, key)))
    }

    #[cfg(not(feature = "tls"))]
    fn with_tls(_server: ServerBuilder, _chain: &str, _key: &str) -> Result<ServerBuilder> {
        crate::usage("--tls-cert needs the Cargo feature `tls`, which is not compiled in")
    }

    fn read(path: &Path) -> Result<String> {
        std::fs::read_to_string(path)
            .map_err(|error| Failure::io(format!("{} cannot be read", path.display()), &error))
    }
}
