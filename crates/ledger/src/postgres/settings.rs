//! Settings on PostgreSQL.

use super::{Postgres, sql};
use crate::Result;
use crate::detached::Effect;
use crate::settings::Rows;

#[async_trait::async_trait]
impl Rows for Postgres {
    async fn show(&self, name: &'static str) -> Result<Option<(i64, String)>> {
        // Read with each look at the others.
        self.vitally(Effect::Reads, move |session| {
            Box::pin(async move {
                sqlx::query_as(sql!("setting_show")).bind(name).fetch_optional(&mut *session).await
            })
        })
        .await
    }

    async fn create(&self, name: &'static str, value: String) -> Result<()> {
        self.writes(move |session| {
            Box::pin(async move {
                sqlx::query(sql!("setting_create")).bind(name).bind(value).execute(&mut *session).await
            })
        })
        .await?;
        Ok(())
    }

    async fn replace(&self, name: &'static str, value: String, version: i64) -> Result<bool> {
        self.writes(move |session| {
            Box::pin(async move {
                let replace = sqlx::query(sql!("setting_replace")).bind(name).bind(value).bind(version);
                Ok(replace.execute(&mut *session).await?.rows_affected() == 1)
            })
        })
        .await
    }
}
