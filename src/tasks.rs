//! The only home of spawning: every task has a name, and one that panics says so.

use std::future::Future;
use tokio::task::JoinHandle;

/// Runs a future in the background. A panic in it is logged with its name and ends that task alone.
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<Option<F::Output>>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "this is the one home of spawning")]
    tokio::spawn(async move {
        let inner = tokio::spawn(future);
        let abort = AbortOnDrop(inner.abort_handle());
        let result = inner.await;
        drop(abort);
        match result {
            Ok(output) => Some(output),
            Err(error) if error.is_cancelled() => None,
            Err(error) => {
                tracing::error!(task = name, %error, "a task panicked; this is a bug");
                None
            }
        }
    })
}

/// Runs blocking work (disk, crypto by the thousand, a child process) on a thread of its own.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    #[expect(clippy::disallowed_methods, reason = "this is the one home of spawning")]
    let handle = tokio::task::spawn_blocking(work);
    match handle.await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Runs a future, and all that it spawns, on a thread of its own: for what waits for a disk and must not make others wait.
pub fn thread<F>(name: &'static str, work: impl FnOnce() -> F + Send + 'static) -> std::io::Result<()>
where
    F: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    std::thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(work())).map(drop)
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
