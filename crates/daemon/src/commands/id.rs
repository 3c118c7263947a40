//! `fencepost id …`: issues and decodes ids, and configures tags and sequences. Without `--json` it prints
//! one id on each line.

use client::wire::List;
use client::wire::ids::{Segment, SegmentRequest, Sequence, SequenceRequest, SnowflakeParts};

use super::look::Look;
use super::{connect, page, shown};
use crate::cli::ids::{Counted, Id};
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Id) -> Result<(), Failure> {
    match command {
        Id::Snowflake { counted: Counted { count }, remote } => {
            let answer = connect(&remote)?.ids().snowflakes(count).await;
            shown::answered(remote.json, answer, |answer| lines(&answer.ids))?;
        }
        Id::Segment { tag, scrambled, counted: Counted { count }, remote } => {
            let answer = connect(&remote)?.ids().segment(&tag, count, scrambled).await;
            shown::answered(remote.json, answer, |answer| lines(&answer.ids))?;
        }
        Id::Sequence { name, counted: Counted { count }, remote } => {
            let answer = connect(&remote)?.ids().sequence(&name, count).await;
            shown::answered(remote.json, answer, |answer| lines(&answer.ids))?;
        }
        Id::Uuid { version, counted: Counted { count }, remote } => {
            let answer = connect(&remote)?.ids().uuids(version, count).await;
            shown::answered(remote.json, answer, |answer| lines(&answer.ids))?;
        }
        Id::Decode { id, remote } => {
            let answer = connect(&remote)?.ids().decode(&id.to_string()).await;
            shown::answered(remote.json, answer, parts_card)?;
        }
        Id::Segments { paged, shown } => {
            let (client, page) = (connect(&shown.remote)?, page(paged));
            Look::list(segments_table).run(&shown, async || client.ids().segments(&page).await).await?;
        }
        Id::Sequences { name, paged, shown } => {
            let (client, page) = (connect(&shown.remote)?, page(paged));
            let read = async || client.ids().sequences(name.as_deref(), &page).await;
            Look::list(sequences_table).run(&shown, read).await?;
        }
        Id::SetSegment { tag, step, start, description, remote } => {
            let request = SegmentRequest { step, start, description };
            let answer = connect(&remote)?.ids().set_segment(&tag, &request).await;
            shown::answered(remote.json, answer, |segment| {
                shown::card([
                    ("tag", segment.tag.clone()),
                    ("start", segment.start.clone()),
                    ("taken up to", shown::or_none(segment.max.as_ref())),
                    ("step", segment.step.to_string()),
                    ("description", described(segment)),
                ])
            })?;
        }
        Id::SetSequence { name, start, increment, remote } => {
            let request = SequenceRequest { start, increment };
            let answer = connect(&remote)?.ids().set_sequence(&name, &request).await;
            shown::answered(remote.json, answer, |sequence| {
                shown::card([
                    ("sequence", sequence.name.clone()),
                    ("start", sequence.start.clone()),
                    ("next", sequence.next.clone()),
                    ("increment", sequence.increment.to_string()),
                ])
            })?;
        }
    }
    Ok(())
}

fn lines(ids: &[String]) -> String {
    ids.iter().fold(String::new(), |text, id| text + id + "\n")
}

fn parts_card(parts: &SnowflakeParts) -> String {
    shown::card([
        ("id", parts.id.clone()),
        ("time", parts.timestamp.clone()),
        ("data center", parts.data_center.to_string()),
        ("worker", parts.worker.to_string()),
        ("worker number", parts.worker_number.to_string()),
        ("sequence", parts.sequence.to_string()),
    ])
}

fn described(segment: &Segment) -> String {
    shown::or_none((!segment.description.is_empty()).then_some(&segment.description))
}

fn segments_table(list: &List<Segment>) -> String {
    let headings = ["TAG", "TAKEN UP TO", "STEP", "RATE", "LEFT", "SECONDS LEFT", "DESCRIPTION"];
    shown::list(headings, list, |segment| {
        [
            segment.tag.clone(),
            shown::or_none(segment.max.as_ref()),
            segment.step.to_string(),
            format!("{:.1}", segment.rate),
            segment.left.to_string(),
            shown::or_none(segment.seconds_left.map(|seconds| format!("{seconds:.0}"))),
            described(segment),
        ]
    })
}

fn sequences_table(list: &List<Sequence>) -> String {
    shown::list(["SEQUENCE", "START", "NEXT", "INCREMENT", "CHANGED"], list, |sequence| {
        [
            sequence.name.clone(),
            sequence.start.clone(),
            sequence.next.clone(),
            sequence.increment.to_string(),
            sequence.updated_at.clone(),
        ]
    })
}
