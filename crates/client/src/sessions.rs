//! Sessions: making one, looking at it, closing it. Its jobs are submitted as any others, with `session` and `ref`; its
//! socket is for clients that want results pushed.

use reqwest::Method;
use wire::sessions::{Session, SessionOpened, SessionRequest};

use crate::transport::{Call, key_or_new};
use crate::{Client, Result};

/// The calls about sessions.
#[derive(Clone, Copy, Debug)]
pub struct Sessions<'a>(&'a Client);

impl Client {
    /// The calls about sessions.
    #[must_use]
    pub const fn sessions(&self) -> Sessions<'_> {
        Sessions(self)
    }
}

impl Sessions<'_> {
    /// Makes a session; when this returns it is durable. Under one `key` the same request is the same session for 24
    /// hours, on any instance. Without it the library makes one for this call.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn open(&self, asked: &SessionRequest, key: Option<&str>) -> Result<SessionOpened> {
        let key = key_or_new(key);
        Ok(self.0.call(&Call::create(&["v1", "sessions"], Some(asked), &key)).await?.body)
    }

    /// One session, as it is now.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for one that never was, or that was forgotten.
    pub async fn get(&self, id: &str) -> Result<Session> {
        Ok(self.0.call(&Call::get(&["v1", "sessions", id], &[])).await?.body)
    }

    /// Closes a session: it takes no more jobs, those that it has are finished. Closed already, it stays so.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn close(&self, id: &str) -> Result<()> {
        let path = ["v1", "sessions", id];
        let () = self.0.call(&Call { method: Method::DELETE, ..Call::get(&path, &[]) }).await?.body;
        Ok(())
    }
}
