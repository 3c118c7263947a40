//! Right requests made wrong at random, from a seed that is printed.

use std::time::{SystemTime, UNIX_EPOCH};

use super::operations::{self, Operation, SIGNER};
use super::socket::{Answer, Request, converse};
use super::{METHODS, Subject};

/// Numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len())]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_random_request_is_answered_as_a_defect() {
    let seed = std::env::var("BAD_INPUT_SEED").ok().and_then(|text| text.parse().ok());
    let seed =
        seed.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64);
    eprintln!("BAD_INPUT_SEED={seed}");
    let mut random = Random(seed);
    let subject = Subject::start().await;
    let operations = operations::with_body(&subject.holds[0]);
    let mut statuses = std::collections::BTreeMap::<u16, u32>::new();
    for round in 0..1_500 {
        let request = random_request(&mut random, &operations);
        let answer = request.send(&subject.address).await;
        *statuses.entry(answer.status).or_default() += 1;
        let shown = || format!("BAD_INPUT_SEED={seed}, round {round}: {request:?}\n{answer:?}");
        let code = answer.json()["code"].as_str().unwrap_or_default().to_owned();
        let retryable = ["lease_held", "ledger_unavailable", "fenced", "exhausted"];
        assert!(
            answer.status < 500 || (answer.status == 503 && retryable.contains(&code.as_str())),
            "{}",
            shown()
        );
        if answer.status >= 400 && request.method != "HEAD" {
            assert_eq!(answer.header("content-type"), "application/problem+json", "{}", shown());
        }
    }
    eprintln!("{statuses:?}");
    // Otherwise nothing was tried: all of it was refused for one reason, or nothing was wrong.
    let is_served = (200..300).any(|status| statuses.contains_key(&status));
    assert!(is_served && statuses.contains_key(&400), "BAD_INPUT_SEED={seed}: {statuses:?}");
    subject.no_defect_was_counted().await;

    // What is no HTTP at all ends with a 4xx or a closed connection.
    for garbage in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/signers/x/nonces HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/signers/x/nonces HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /v1/signers/x/nonces HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ] {
        let bytes = converse(&subject.address, garbage).await;
        let status = Answer::parse(&bytes).map(|answer| answer.status);
        assert!(status.is_none_or(|status| (400..500).contains(&status)), "{garbage:?}: {status:?}");
    }
    subject.no_defect_was_counted().await;
}

/// A right request, made wrong in a few places, or by luck still right.
fn random_request(random: &mut Random, operations: &[Operation]) -> Request {
    let operation = random.pick(operations);
    let mut request = operation.with(&operation.right());
    request.target = request.target.replace(SIGNER, random.pick::<&str>(&[SIGNER, "a", "b", "fuzz"]));
    for _ in 0..=random.below(3) {
        match random.below(8) {
            0 => request.method = (*random.pick(&METHODS)).to_owned(),
            1 => request.target = random_target(random, &request.target),
            2 => request.headers.retain(|(name, _)| name == "authorization"),
            3 => {
                let key: Vec<u8> = (0..random.below(140)).map(|_| 0x20 + random.below(0x5f) as u8).collect();
                request = request.header("idempotency-key", key);
            }
            4 => {
                let values = ["0", "-1", "1e9", "null", "[]", "{}", "\"\"", "\"x\"", "9007199254740991", "1"];
                let mut fields = operation.right();
                let at = random.below(fields.len());
                fields[at].1 = (*random.pick(&values)).to_owned();
                request.body = operation.with(&fields).body;
            }
            _ => {
                let body = request.body.get_or_insert_default();
                match random.below(4) {
                    0 if !body.is_empty() => {
                        body.remove(random.below(body.len()));
                    }
                    1 if !body.is_empty() => {
                        let at = random.below(body.len());
                        body[at] = random.next() as u8;
                    }
                    2 => body.truncate(random.below(body.len() + 1)),
                    _ => {
                        let piece = *random
                            .pick(&["{", "}", "[", "]", "\"", ",", ":", "\\", "\\u12", "0", "-", "\0"]);
                        let at = random.below(body.len() + 1);
                        body.splice(at..at, piece.bytes());
                    }
                }
            }
        }
    }
    request
}

fn random_target(random: &mut Random, target: &str) -> String {
    let mut segments: Vec<String> = target.split('/').map(str::to_owned).collect();
    let at = 1 + random.below(segments.len() - 1);
    segments[at] = match random.below(4) {
        0 => String::new(),
        1 => random.next().to_string(),
        2 => (0..random.below(8)).map(|_| format!("%{:02x}", random.next() as u8)).collect(),
        _ => {
            (*random.pick(&["signers", "nonces", "..", "%2e", "consume", "?", "?limit=%00", "0"])).to_owned()
        }
    };
    segments.join("/")
}
