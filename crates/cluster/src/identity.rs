//! The identity of one incarnation.

use domain::InstanceId;
use domain::limits::INSTANCE_ID_CHARS_MAX;
use uuid::Uuid;

/// Characters that the part of an instance id unique to one start has, its dash included.
const UNIQUE_CHARS: usize = 33;
/// Longest node name, in characters.
pub const NODE_NAME_CHARS_MAX: usize = INSTANCE_ID_CHARS_MAX - UNIQUE_CHARS;

/// One incarnation of Fencepost, as it presents itself.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its id: node name and a part unique to this start.
    pub id: InstanceId,
    /// Where others reach it.
    pub url: String,
}

impl Identity {
    /// A new incarnation of the node. The unique part is what keeps a restarted process from renewing
    /// the lease of its own paused predecessor.
    ///
    /// # Errors
    /// [`domain::Invalid`] for a node name outside the safe characters or longer than
    /// [`NODE_NAME_CHARS_MAX`].
    pub fn new(node_name: &str, url: String) -> Result<Self, domain::Invalid> {
        let too_long = || domain::Invalid {
            what: "node_name",
            expected: format!("1 to {NODE_NAME_CHARS_MAX} characters of letters, digits and . _ : @ -"),
        };
        if node_name.is_empty() {
            return Err(too_long());
        }
        let id =
            InstanceId::parse(&format!("{node_name}-{}", Uuid::now_v7().simple())).map_err(|_| too_long())?;
        Ok(Self { id, url })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_starts_of_one_node_are_two_instances() {
        let start = || Identity::new("node-a", "http://127.0.0.1:7070".to_owned()).unwrap().id;
        let (first, second) = (start(), start());
        assert_ne!(first, second);
        assert!(first.as_str().starts_with("node-a-"));
    }

    #[test]
    fn node_names_leave_room_for_the_unique_part() {
        let named = |name: &str| Identity::new(name, String::new()).map(|_| ());
        assert!(named(&"n".repeat(NODE_NAME_CHARS_MAX)).is_ok());
        assert!(named(&"n".repeat(NODE_NAME_CHARS_MAX + 1)).is_err());
        assert!(named("").is_err());
        assert!(named("a b").is_err());
    }
}
