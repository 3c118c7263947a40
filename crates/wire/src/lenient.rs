//! Readers for fields of answers, which may come from a newer daemon: words that this version does not know, and fields in
//! objects whose own readers refuse those, because requests have such objects too.
//!
//! Nothing here knows a particular field. What must never use it: a request.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, IntoDeserializer,
    MapAccess, Visitor,
};

/// What may be more in an answer of a newer daemon than in one of today.
pub trait Growing: DeserializeOwned {
    /// Reads what this version knows of it. Without more, an object, whose other fields are passed over.
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ObjectVisitor(PhantomData))
    }
}

impl<T: Growing> Growing for Option<T> {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Option::<Grown<T>>::deserialize(from)?.map(|Grown(it)| it))
    }
}

impl<T: Growing> Growing for Vec<T> {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Vec::<Grown<T>>::deserialize(from)?.into_iter().map(|Grown(it)| it).collect())
    }
}

/// One within something else.
struct Grown<T>(T);

impl<'de, T: Growing> Deserialize<'de> for Grown<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::read(from).map(Self)
    }
}

/// For fields of answers.
pub fn read<'de, T: Growing, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    T::read(from)
}

/// Reads one of some words, or any other as `otherwise`.
pub struct AnyWord<T: 'static> {
    pub known: &'static [(&'static str, T)],
    pub otherwise: T,
}

impl<T: Copy> Visitor<'_> for AnyWord<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a word")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        let known = self.known.iter().find(|(word, _)| *word == text);
        Ok(known.map_or(self.otherwise, |(_, word)| *word))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: DeserializeOwned> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(ObjectReader(map))
    }
}

/// Gives a reader of an object the fields that it names, and no others.
struct ObjectReader<A>(A);

impl<'de, A: MapAccess<'de>> Deserializer<'de> for ObjectReader<A> {
    type Error = A::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, A::Error> {
        visitor.visit_map(self.0)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_map(KnownFields { names, map: self.0 })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct KnownFields<A> {
    names: &'static [&'static str],
    map: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for KnownFields<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(name) = self.map.next_key::<String>()? {
            if self.names.contains(&name.as_str()) {
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
            self.map.next_value::<IgnoredAny>()?;
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::bulk::{Bulk, BulkAction, BulkFilter, BulkRequest, BulkStatus};
    use crate::cluster::{Cluster, Mode, ModeSetting};
    use crate::events::{ClusterEvent, ClusterHappening, JobEvent, NodeEvent, NodeHappening};
    use crate::health::{CheckStatus, Readiness, Ready};
    use crate::jobs::{Job, JobAccepted, JobRequest, JobState, Outcome};
    use crate::nodes::{ClaimStatus, Node, NodeClaim, NodeState, PoolsSetting};
    use crate::nonces::{Grant, NonceAnswer, OnExpiry, Policy, PolicyRequest, SettlementResult, Status};
    use crate::plans::{Intent, OnFailure, Plan, PlanRequest, PlanStatus, StageStatus, Task, TaskStatus};
    use crate::sessions::{ListedSession, Ordering, Session, SessionFrame, SessionOpened, SessionRequest};
    use crate::whoami::{TokenScope, Whoami};

    fn of<T: DeserializeOwned>(text: &str) -> T {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_word_that_is_not_known_is_another_one() {
        fn is<T: Growing + PartialEq + fmt::Debug>(unrecognised: T) {
            let read = T::read(Value::from("of a newer daemon")).unwrap();
            assert_eq!(read, unrecognised);
            assert!(T::read(Value::from(7)).is_err());
        }
        is(BulkAction::Unrecognised);
        is(BulkStatus::Unrecognised);
        is(CheckStatus::Unrecognised);
        is(ClaimStatus::Unrecognised);
        is(ClusterHappening::Unrecognised);
        is(Intent::Unrecognised);
        is(JobState::Unrecognised);
        is(Mode::Unrecognised);
        is(NodeHappening::Unrecognised);
        is(NodeState::Unrecognised);
        is(OnExpiry::Unrecognised);
        is(OnFailure::Unrecognised);
        is(Ordering::Unrecognised);
        is(Outcome::Unrecognised);
        is(PlanStatus::Unrecognised);
        is(Readiness::Unrecognised);
        is(StageStatus::Unrecognised);
        is(Status::Unrecognised);
        is(TaskStatus::Unrecognised);
        is(TokenScope::Unrecognised);
        assert_eq!(JobState::read(Value::from("RUNNING")).unwrap(), JobState::Running);
        assert!(!JobState::ALL.contains(&JobState::Unrecognised));
    }

    #[test]
    fn answers_of_a_newer_daemon_are_read_as_far_as_they_are_known() {
        let node: Node = of(
            r#"{"id":"n","state":"asleep","instance":"i","capacity":1,"used":0,"labels":[],"pools":[],"load":{"disk":1,"cpu":0.5},"version":null,"seen_at":"t"}"#,
        );
        assert_eq!((node.state, node.load.unwrap().cpu), (NodeState::Unrecognised, Some(0.5)));
        let pools: PoolsSetting = of(r#"{"version":1,"pools":[{"name":"p","colour":"blue","weight":2}]}"#);
        assert_eq!((pools.pools[0].name.as_str(), pools.pools[0].weight), ("p", 2));
        let job = |rest: &str| -> Job {
            of(&format!(
                r#"{{"id":"j","state":"ASLEEP","lane":"l","requires":[],"priority":0,"timeout_ms":1,"attempt":1,"max_attempts":3,"dead":false,"created_at":"t"{rest}}}"#
            ))
        };
        let newer = job(r#","outcome":"moved","route":{"source":"zh","via":"de","target":"en"}"#);
        assert_eq!((newer.state, newer.outcome), (JobState::Unrecognised, Some(Outcome::Unrecognised)));
        assert_eq!(newer.route.unwrap().target, "en");
        for without in [job(""), job(r#","outcome":null,"route":null"#)] {
            assert_eq!((without.outcome, without.route), (None, None));
        }
        let bulk: Bulk = of(
            r#"{"id":"b","action":"archive","filter":{"state":"ASLEEP","outcome":"moved","colour":"blue","kind":"k","dead":true},"before":"t","rate":1,"status":"ASLEEP","matched":1,"done":0,"skipped":0,"failed":0,"error":null,"by":"","instance":null,"created_at":"t","finished_at":null}"#,
        );
        assert_eq!((bulk.action, bulk.status), (BulkAction::Unrecognised, BulkStatus::Unrecognised));
        assert_eq!(
            bulk.filter,
            BulkFilter {
                state: Some(JobState::Unrecognised),
                outcome: Some(Outcome::Unrecognised),
                kind: Some("k".to_owned()),
                dead: Some(true),
                ..BulkFilter::default()
            }
        );
        let caller: Whoami = of(
            r#"{"name":"t","scopes":["read","audit"],"sees_everything":true,"instance":"i","version":"9","node":{"id":"n","status":"lent"}}"#,
        );
        assert_eq!(caller.scopes, [TokenScope::Read, TokenScope::Unrecognised]);
        assert_eq!(caller.node.unwrap().status, ClaimStatus::Unrecognised);
        let settled: SettlementResult = of(r#"{"nonce":7,"status":"PENDING"}"#);
        assert_eq!(settled, SettlementResult::Settled { nonce: 7, status: Status::Unrecognised });
        let ready: Ready = of(r#"{"status":"slow","checks":{"disk":{"status":"full"}}}"#);
        assert_eq!(ready.status, Readiness::Unrecognised);
        assert_eq!(ready.checks["disk"].status, CheckStatus::Unrecognised);
    }

    #[test]
    fn no_word_makes_an_answer_unreadable() {
        fn is<T: DeserializeOwned>(text: &str) {
            of::<T>(&text.replace('?', "of a newer daemon"));
        }
        is::<JobAccepted>(r#"{"id":"j","state":"?","lane":"l","created_at":"t"}"#);
        is::<NodeClaim>(r#"{"id":"n","status":"?"}"#);
        is::<Cluster>(r#"{"instance":"i","mode":"?","ring_version":1,"instances":[]}"#);
        is::<ModeSetting>(r#"{"mode":"?","version":1}"#);
        is::<JobEvent>(r#"{"id":"j","state":"?","outcome":"?","attempt":1}"#);
        is::<NodeEvent>(r#"{"id":"n","what":"?","state":"?","instance":"i"}"#);
        is::<ClusterEvent>(r#"{"what":"?","mode":"?"}"#);
        is::<Grant>(r#"{"nonce":1,"hold":"h","status":"?","held_until":"t","held_for_ms":1}"#);
        is::<NonceAnswer>(r#"{"signer":"s","nonce":1,"status":"?"}"#);
        is::<SessionFrame>(r#"{"type":"result","id":"j","seq":1,"ref":null,"outcome":"?"}"#);
        is::<Policy>(r#"{"first_nonce":0,"hold_ms":null,"on_expiry":"?","max_in_flight":null}"#);
        is::<SessionOpened>(r#"{"id":"s","owner":"i","ordering":"?"}"#);
        is::<Session>(
            r#"{"id":"s","owner":null,"tenant":null,"ordering":"?","route":null,"pool":null,"requires":[],"idle_ms":1,"idle_for_ms":1,"created_at":"t","closed_at":null,"jobs":{"created":0,"dispatched":0,"running":0,"finished":0},"last_seq":0,"last_node":null}"#,
        );
        is::<ListedSession>(
            r#"{"id":"s","tenant":null,"ordering":"?","route":{"source":"a","target":"b","?":1},"pool":null,"requires":[],"idle_ms":1,"idle_for_ms":1,"created_at":"t","closed_at":null}"#,
        );
        is::<Plan>(
            r#"{"id":"p","name":null,"status":"?","max_concurrency":5,"on_failure":"?","timeout_ms":1,"intent":"?","halted":false,"over_time":true,"progress":{"total":2,"pending":1,"running":0,"succeeded":0,"failed":1,"paused":0,"interrupted":0,"cancelled":0},"created_at":"t","started_at":"t","finished_at":null,"attention":[{"task":"k","tenant":"t","status":"?","reason":"r","stage":1,"stage_name":"s"}]}"#,
        );
        is::<Task>(
            r#"{"id":"k","plan":"p","place":1,"tenant":"t","name":"n","status":"?","intent":"?","reason":null,"run":2,"run_at":"t","timeout_ms":1,"definition":1,"stage":1,"stages":[{"name":"a","status":"?","job":null}],"has_checkpoint":false,"checkpoint":null,"checkpoint_version":0,"waits_for":null,"updated_at":"t"}"#,
        );
    }

    #[test]
    fn requests_stay_as_strict_as_they_were() {
        let route = r#"{"payload":1,"route":{"source":"zh","via":"de","target":"en"}}"#;
        let message = serde_json::from_str::<JobRequest>(route).unwrap_err().to_string();
        assert!(message.contains("unknown field `via`"), "{message}");
        let filter = r#"{"action":"delete","filter":{"kind":"k","colour":"blue"}}"#;
        let message = serde_json::from_str::<BulkRequest>(filter).unwrap_err().to_string();
        assert!(message.contains("unknown field `colour`"), "{message}");
        for word in ["moved", Outcome::Unrecognised.as_str()] {
            let of = |body: &str| body.replace('?', word);
            assert!(serde_json::from_str::<BulkFilter>(&of(r#"{"outcome":"?"}"#)).is_err());
            assert!(serde_json::from_str::<BulkFilter>(&of(r#"{"state":"?"}"#)).is_err());
            assert!(serde_json::from_str::<BulkRequest>(&of(r#"{"action":"?","filter":{}}"#)).is_err());
            assert!(serde_json::from_str::<SessionRequest>(&of(r#"{"ordering":"?"}"#)).is_err());
            assert!(serde_json::from_str::<PolicyRequest>(&of(r#"{"on_expiry":"?"}"#)).is_err());
            let plan = r#"{"on_failure":"?","tasks":[{"tenant":"t","stages":[{"name":"s","payload":1}]}]}"#;
            let message = serde_json::from_str::<PlanRequest>(&of(plan)).unwrap_err().to_string();
            assert!(message.contains("one of \"stop_new\""), "{message}");
        }
    }
}
