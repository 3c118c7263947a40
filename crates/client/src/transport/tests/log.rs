//! What a call says in the log.

use std::fmt::{Debug, Write as _};
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;

/// Keeps each event of the library as a text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("client::")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_pause_is_logged_with_its_request_and_the_reason() {
    let log = Log::default();
    let _logs = tracing::subscriber::set_default(log.clone());
    let script = vec![refused(Code::LeaseHeld, Some(1)), granted(), granted()];
    let server = StandIn::playing(script).await;
    for _ in 0..2 {
        grant(&client(&[&server])).await.unwrap();
    }
    let lines = log.0.lock().unwrap().clone();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let request_id = header(&server.heard()[0], "X-Request-Id").unwrap();
    assert!(line.starts_with("DEBUG ") && line.contains(&request_id), "{line}");
    assert!(
        line.contains("path=\"v1/signers/eip155:1:0xab/nonces\"") && line.contains("lease_held: because")
    );
}
