//! The requests in flight.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The requests in flight, and whether new ones are still taken.
#[derive(Debug, Default)]
pub struct Traffic {
    stopping_soon: AtomicBool,
    draining: AtomicBool,
    drained: Notify,
    in_flight: AtomicUsize,
    emptied: Notify,
}

impl Traffic {
    /// Counts a request until the answer is dropped. Enter first and ask [`Self::is_draining`] then: the drain asks in the
    /// other order, so no request is both admitted and overlooked.
    pub fn enter(&self) -> InFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        InFlight(self)
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// From now on [`Self::is_stopping`], and nothing else has changed.
    pub fn stop_soon(&self) {
        self.stopping_soon.store(true, Ordering::SeqCst);
    }

    /// Whether this instance refuses new requests, or soon will.
    pub fn is_stopping(&self) -> bool {
        self.stopping_soon.load(Ordering::SeqCst) || self.is_draining()
    }

    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.drained.notify_waiters();
    }

    /// Resolves when this instance refuses new requests.
    pub async fn until_draining(&self) {
        let mut drained = pin!(self.drained.notified());
        // Registered before the look, so that a drain in between is not missed.
        drained.as_mut().enable();
        if !self.is_draining() {
            drained.await;
        }
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Resolves when no request is in flight.
    pub async fn idle(&self) {
        loop {
            let mut emptied = pin!(self.emptied.notified());
            // Registered before the count is read, so that the last one's leaving is not missed.
            emptied.as_mut().enable();
            if self.in_flight() == 0 {
                return;
            }
            emptied.await;
        }
    }
}

/// One request in flight.
pub struct InFlight<'t>(&'t Traffic);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.emptied.notify_waiters();
        }
    }
}
