//! The one order to stop, known to everything that waits.

use tokio::sync::watch;

/// Gives the order.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// Waits for the order. Also given when the [`Stopper`] is gone.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// A pair of the two.
pub fn pair() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    /// Everything that holds a [`Stop`] ends.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Returns when the order has been given.
    pub async fn requested(&mut self) {
        // An error means that nobody is left to give the order: as good as given.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}
