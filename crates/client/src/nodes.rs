//! Nodes and pools: how to show, drain and configure them, and how to ask which node a job would get.

use wire::nodes::{Node, PauseRequest, PoolPause, PoolsRequest, PoolsSetting, SelectAnswer, SelectRequest};
use wire::{Json, List};

use crate::observe::Page;
use crate::transport::Call;
use crate::{Client, Result};

/// The calls about nodes and pools.
#[derive(Clone, Copy, Debug)]
pub struct Nodes<'a>(&'a Client);

impl Client {
    /// The calls about nodes and pools.
    #[must_use]
    pub const fn nodes(&self) -> Nodes<'_> {
        Nodes(self)
    }
}

impl Nodes<'_> {
    /// One node.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a node that is not connected.
    pub async fn get(&self, id: &str) -> Result<Node> {
        self.0.call(&Call::get(&["v1", "nodes", id], &[])).await
    }

    /// The nodes, in the order of their ids.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn list(&self, page: &Page) -> Result<List<Node>> {
        self.0.call(&Call::get(&["v1", "nodes"], &page.query())).await
    }

    /// Drains a node: it finishes its jobs and gets no more; needs the scope `admin`. Draining it again changes nothing.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a node that is not connected.
    pub async fn drain(&self, id: &str) -> Result<Node> {
        self.act(id, "drain").await
    }

    /// Ends the drain of a node; needs the scope `admin`. Ending it again changes nothing, unless another drain has begun
    /// meanwhile: then that one ends, also by the library's own repetition after a lost answer.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a node that is not connected.
    pub async fn undrain(&self, id: &str) -> Result<Node> {
        self.act(id, "undrain").await
    }

    async fn act(&self, id: &str, verb: &str) -> Result<Node> {
        self.0.call(&Call::act(&["v1", "nodes", id, verb])).await
    }

    /// The node that a job with these requirements would get now, and why. No slot is reserved.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn select(&self, wanted: &SelectRequest) -> Result<SelectAnswer> {
        let path = ["v1", "nodes", "select"];
        self.0.call(&Call { changes_nothing: true, ..Call::post(&path, wanted) }).await
    }

    /// The configured pools, with the version of their setting.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn pools(&self) -> Result<PoolsSetting> {
        self.0.call(&Call::get(&["v1", "config", "pools"], &[])).await
    }

    /// The same as the daemon wrote it, with the fields that a newer daemon's pools may have and this library does not know.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn pools_as_written(&self) -> Result<Json> {
        let written: Json = self.0.call(&Call::get(&["v1", "config", "pools"], &[])).await?;
        written.read::<PoolsSetting>().map_err(|error| self.0.strange(error.to_string()))?;
        Ok(written)
    }

    /// Replaces all pools; needs the scope `admin`. Fields of theirs that [`Nodes::pools`] has passed over are lost:
    /// [`Nodes::pools_as_written`] shows whether there are any.
    ///
    /// # Errors
    /// [`crate::Error`]; `conflict` if the version is not the newest, so also for a repetition.
    /// [`crate::Error::Lost`] where the library's own repetition after a lost answer is refused so.
    pub async fn set_pools(&self, pools: &PoolsRequest) -> Result<PoolsSetting> {
        self.0.call(&Call::put(&["v1", "config", "pools"], pools)).await
    }

    /// Pauses a pool: nothing is dispatched to it; needs the scope `admin`. A new pause replaces the earlier one.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a pool that is not configured.
    pub async fn pause_pool(&self, pool: &str, pause: &PauseRequest) -> Result<PoolPause> {
        self.0.call(&Call::post(&["v1", "pools", pool, "pause"], pause)).await
    }

    /// Ends the pause of a pool; needs the scope `admin`. A pool that is not paused stays as it is. A pause that has begun
    /// meanwhile ends too, as for [`Nodes::undrain`]. Returns all pools.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a pool that is neither configured nor paused.
    pub async fn resume_pool(&self, pool: &str) -> Result<PoolsSetting> {
        self.0.call(&Call::act(&["v1", "pools", pool, "resume"])).await
    }
}
