//! A page of a list.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct List<T> {
    /// The items of this page, in the list's order.
    pub items: Vec<T>,
    /// The `cursor` of the next page. `null` on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}
