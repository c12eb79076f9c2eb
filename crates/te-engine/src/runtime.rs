//! The control plane's runtime: owned by the engine, or lent by the caller.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind, Result};

/// Where control work runs.
#[derive(Clone, Debug, Default)]
pub enum RuntimeChoice {
    /// One thread of the engine's own.
    #[default]
    Owned,
    /// A runtime of the caller's, with I/O and time enabled; it must outlive the engine.
    Lent(Handle),
}

pub(crate) struct Runtime {
    handle: Handle,
    owned: Mutex<Option<Owned>>,
}

struct Owned {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Runtime {
    pub(crate) fn start(choice: RuntimeChoice) -> Result<Self> {
        let RuntimeChoice::Owned = choice else {
            let RuntimeChoice::Lent(handle) = choice else { return Err(failed("unknown runtime choice")) };
            return Ok(Self { handle, owned: Mutex::new(None) });
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| failed(&error.to_string()))?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name("te-control".to_owned())
            .spawn(move || {
                // An error means the sender is gone, which is a stop as well.
                let _ = runtime.block_on(stopped);
                // Blocking work that never ends must not hold up the process.
                runtime.shutdown_background();
            })
            .map_err(|error| failed(&error.to_string()))?;
        Ok(Self { handle, owned: Mutex::new(Some(Owned { stop, thread })) })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a future on the control runtime; can be awaited from any executor.
    pub(crate) async fn run<T, F>(&self, operation: &str, future: F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        let (answer, received) = oneshot::channel();
        self.handle.spawn(async move {
            // The caller may have gone away; the work is done all the same.
            let _ = answer.send(future.await);
        });
        received.await.unwrap_or_else(|_| Err(Error::shutdown(operation)))
    }

    /// Runs blocking work beside the control runtime.
    pub(crate) async fn run_blocking<T, F>(&self, operation: &str, work: F) -> Result<T>
    where
        F: FnOnce() -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let (answer, received) = oneshot::channel();
        self.handle.spawn_blocking(move || {
            let _ = answer.send(work());
        });
        received.await.unwrap_or_else(|_| Err(Error::shutdown(operation)))
    }

    /// Ends the owned runtime. Called from its own thread it only asks; otherwise it waits.
    pub(crate) fn stop(&self) {
        let Some(Owned { stop, thread }) = self.owned.lock().take() else { return };
        let _ = stop.send(());
        if thread.thread().id() != thread::current().id() {
            // A panicked control thread has been reported by the panic hook already.
            let _ = thread.join();
        }
    }
}

fn failed(cause: &str) -> Error {
    Error::new(ErrorKind::Config, "start the control runtime", cause)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives a future of this crate to its end on the calling thread, without a runtime of the caller's.
///
/// Must not be called from the engine's own control thread: the future would wait for itself.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
