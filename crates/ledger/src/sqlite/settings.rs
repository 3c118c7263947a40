//! Settings in SQLite.

use super::{Sqlite, sql};
use crate::Result;
use crate::settings::Rows;

#[async_trait::async_trait]
impl Rows for Sqlite {
    async fn show(&self, name: &'static str) -> Result<Option<(i64, String)>> {
        let pool = self.readers.clone();
        self.reads(async move { sqlx::query_as(sql!("setting_show")).bind(name).fetch_optional(&pool).await })
            .await
    }

    async fn create(&self, name: &'static str, value: String) -> Result<()> {
        let pool = self.writer.clone();
        self.writes(async move {
            sqlx::query(sql!("setting_create")).bind(name).bind(value).execute(&pool).await
        })
        .await?;
        Ok(())
    }

    async fn replace(&self, name: &'static str, value: String, version: i64) -> Result<bool> {
        let pool = self.writer.clone();
        self.writes(async move {
            let replace = sqlx::query(sql!("setting_replace")).bind(name).bind(value).bind(version);
            Ok(replace.execute(&pool).await?.rows_affected() == 1)
        })
        .await
    }
}
