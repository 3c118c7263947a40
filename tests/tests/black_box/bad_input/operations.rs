//! Every operation of the API, what it takes, and every way to get each part of it wrong.

use super::BODY_BYTES_MAX;
use super::socket::Request;

/// The signer that the table is tried on.
pub const SIGNER: &str = "eip155:1:0xbad";

/// What a field takes.
pub enum Kind {
    /// A whole number in this range; `null` as well if the flag is set.
    Number(u64, u64, bool),
    /// 1 to 128 characters; visible ASCII only if the flag is set.
    Text(bool),
    /// One of a few words, of which these are none.
    Word(&'static [&'static str]),
    /// A number in this range, whole or not.
    Factor(u64, u64),
    /// 1 to so many characters for people; the second is what no name may have, beside control characters.
    Name(usize, &'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// Any JSON of at most so many bytes; an object if the flag is set.
    Json(usize, bool),
    /// An object with fields.
    Object,
    /// 0 to so many texts of 1 to so many characters.
    Texts(usize, usize),
    /// 1 to so many objects.
    Items(usize),
}

/// A field of a body, with a right value as JSON text.
pub struct Field {
    pub name: &'static str,
    pub required: bool,
    pub right: String,
    pub kind: Kind,
}

/// An operation with a body.
pub struct Operation {
    pub method: &'static str,
    pub path: String,
    /// The token that it needs.
    pub token: &'static str,
    pub fields: Vec<Field>,
    /// What stands before and behind the object of the fields, where that is a part of the body.
    pub around: (String, String),
    /// Whether the body may be left out.
    pub optional: bool,
    /// Longest body, in bytes.
    pub bytes_max: usize,
}

impl Operation {
    /// The request with these fields, right but for what the caller changed.
    pub fn with(&self, fields: &[(String, String)]) -> Request {
        let fields: Vec<_> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        let (before, behind) = &self.around;
        self.request().json(format!("{before}{{{}}}{behind}", fields.join(",")))
    }

    pub fn request(&self) -> Request {
        Request::new(self.method, &self.path).token(self.token)
    }

    /// All fields, right.
    pub fn right(&self) -> Vec<(String, String)> {
        self.fields.iter().map(|field| (field.name.to_owned(), field.right.clone())).collect()
    }

    /// Every way to get one field wrong.
    pub fn wrong_fields(&self) -> Vec<(String, Request)> {
        let mut wrong = Vec::new();
        for field in &self.fields {
            for value in field.wrong() {
                let mut fields = self.right();
                fields.iter_mut().find(|(name, _)| name == field.name).unwrap().1 = value.clone();
                wrong.push((field.name.to_owned(), self.with(&fields)));
            }
            let mut twice = self.right();
            twice.push((field.name.to_owned(), field.right.clone()));
            wrong.push((field.name.to_owned(), self.with(&twice)));
            if field.required {
                let mut fields = self.right();
                fields.retain(|(name, _)| name != field.name);
                wrong.push((field.name.to_owned(), self.with(&fields)));
            }
        }
        let mut unknown = self.right();
        unknown.push(("surprise".to_owned(), "1".to_owned()));
        wrong.push(("surprise".to_owned(), self.with(&unknown)));
        wrong
    }
}

impl Field {
    fn wrong(&self) -> Vec<String> {
        let mut wrong: Vec<String> = match &self.kind {
            Kind::Flag => ["[]", "{}", "[1]"].map(str::to_owned).into(),
            Kind::Json(_, false) => Vec::new(),
            Kind::Json(_, true) => ["true", "false", "[]", "[1]"].map(str::to_owned).into(),
            Kind::Object => ["true", "false", "[]", "[1]"].map(str::to_owned).into(),
            Kind::Texts(..) => ["true", "false", "{}", "[1]"].map(str::to_owned).into(),
            _ => ["true", "false", "[]", "{}", "[1]"].map(str::to_owned).into(),
        };
        match &self.kind {
            Kind::Number(min, max, nullable) => {
                let texts = ["1.5", "1.0", "1e3", "-0", "-1", "\"1\"", "\"\"", "1e400", "-1e400"];
                wrong.extend(texts.map(str::to_owned));
                wrong.extend(["18446744073709551615", "18446744073709551616"].map(str::to_owned));
                wrong.push((max + 1).to_string());
                if *min > 0 {
                    wrong.push((min - 1).to_string());
                }
                if !nullable {
                    wrong.push("null".to_owned());
                }
            }
            Kind::Text(ascii) => {
                wrong.extend(["null", "1", "\"\""].map(str::to_owned));
                wrong.push(format!("{:?}", "x".repeat(129)));
                wrong.push(format!("{:?}", "x".repeat(10_000)));
                // Half of a surrogate pair is no character.
                wrong.push("\"\\ud800\"".to_owned());
                if *ascii {
                    wrong.extend(
                        ["\"0x1 2\"", "\"é\"", "\"\\u0000\"", "\"\\n\"", "\" 0x1\""].map(str::to_owned),
                    );
                }
            }
            Kind::Word(others) => {
                wrong.extend(["null", "1", "\"\"", "\"nonsense\""].map(str::to_owned));
                wrong.push(format!("{{{}:null}}", self.right));
                wrong.push(format!("[{}]", self.right));
                wrong.push(self.right.to_uppercase());
                wrong.extend(others.iter().map(|word| format!("{word:?}")));
            }
            Kind::Factor(min, max) => {
                wrong.extend(["null", "\"1\"", "\"\"", "-0.5", "1e400", "NaN"].map(str::to_owned));
                wrong.push(format!("{}.999", min - 1));
                wrong.push(format!("{max}.001"));
            }
            Kind::Name(max, others) => {
                wrong.extend(["null", "1", "\"\"", "\"\\ud800\""].map(str::to_owned));
                wrong.push(format!("{:?}", "x".repeat(max + 1)));
                wrong.push(format!("{:?}", "ü".repeat(max + 1)));
                wrong.extend(["\"\\u0000\"", "\"a\\u0000b\""].map(str::to_owned));
                wrong.extend(others.iter().map(|other| format!("\"{other}\"")));
            }
            Kind::Flag => wrong.extend(["null", "1", "0", "\"true\"", "\"\"", "TRUE"].map(str::to_owned)),
            Kind::Json(max, is_object) => {
                wrong.extend(["", "nul", "NaN", "01", "'x'", "\"\n\""].map(str::to_owned));
                wrong.push(format!("{{\"x\":{:?}}}", "x".repeat(*max)));
                if *is_object {
                    wrong.extend(["null", "1", "\"{}\"", "[{}]"].map(str::to_owned));
                }
            }
            Kind::Object => {
                wrong.extend(["null", "1", "\"x\"", "[{}]", "{\"surprise\":1}"].map(str::to_owned));
            }
            Kind::Texts(items, chars) => {
                wrong.extend(
                    ["null", "1", "\"x\"", "[null]", "[\"\"]", "[[\"x\"]]", "[\"a b\"]"].map(str::to_owned),
                );
                wrong.extend(["[\"\\u0000\"]", "[\"ü\"]"].map(str::to_owned));
                wrong.push(format!("[{:?}]", "x".repeat(chars + 1)));
                wrong.push(format!("[{}]", vec!["\"x\""; items + 1].join(",")));
            }
            Kind::Items(max) => {
                wrong.extend(["null", "7", "\"x\"", "[null]", "[\"x\"]", "[[]]", "[{}]"].map(str::to_owned));
                let item = self.right.strip_prefix('[').unwrap().strip_suffix(']').unwrap();
                wrong.push(format!("[{item},{{}}]"));
                wrong.push(format!("[{}]", vec![item; max + 1].join(",")));
            }
        }
        wrong
    }
}

pub fn field(name: &'static str, required: bool, right: impl Into<String>, kind: Kind) -> Field {
    Field { name, required, right: right.into(), kind }
}

/// All operations with a body. Nonce 0 is held under `hold`, nonce 2 is quarantined.
pub fn with_body(hold: &str) -> Vec<Operation> {
    let hold = || field("hold", true, format!("{hold:?}"), Kind::Text(false));
    let tx_hash = || field("tx_hash", false, "\"0xfeed\"", Kind::Text(true));
    let operation = |method, path: &str, token, fields| Operation {
        method,
        path: format!("/v1/signers/{SIGNER}{path}"),
        token,
        fields,
        around: <(String, String)>::default(),
        optional: false,
        bytes_max: BODY_BYTES_MAX,
    };
    let hold_ms = || field("hold_ms", false, "3600000", Kind::Number(1, 604_800_000, false));
    let nonce_max = 9_007_199_254_740_991;
    vec![
        Operation {
            optional: true,
            ..operation(
                "POST",
                "/nonces",
                "user",
                vec![field("count", false, "1", Kind::Number(1, 1_000, false)), hold_ms()],
            )
        },
        Operation {
            around: (r#"{"settlements":["#.to_owned(), "]}".to_owned()),
            ..operation(
                "POST",
                "/settlements",
                "user",
                vec![
                    field("nonce", true, "0", Kind::Number(0, nonce_max, false)),
                    hold(),
                    field("outcome", true, "\"consumed\"", Kind::Word(&["released"])),
                    tx_hash(),
                ],
            )
        },
        operation("POST", "/nonces/0/consume", "user", vec![hold(), tx_hash()]),
        operation(
            "POST",
            "/nonces/0/release",
            "user",
            vec![hold(), field("outcome", true, "\"unknown\"", Kind::Word(&["consumed"]))],
        ),
        operation(
            "POST",
            "/nonces/2/resolve",
            "admin",
            vec![field("outcome", true, "\"consumed\"", Kind::Word(&["unknown"])), tx_hash()],
        ),
        operation(
            "PUT",
            "/policy",
            "admin",
            vec![
                field("first_nonce", false, "0", Kind::Number(0, nonce_max, false)),
                hold_ms(),
                field("on_expiry", false, "\"quarantine\"", Kind::Word(&["keep"])),
                field("max_in_flight", false, "100", Kind::Number(1, 1_000_000, true)),
                field("shared_keys", false, "false", Kind::Flag),
            ],
        ),
    ]
}

/// Every path, the methods it takes, and the token it needs; the paths of operations with a body too.
pub fn paths() -> Vec<(String, &'static [&'static str], &'static str)> {
    let signer = |rest: &str| format!("/v1/signers/{SIGNER}{rest}");
    let nobody = "00000000-0000-7000-8000-000000000000";
    let of_plan = |rest: &str| format!("/v1/plans/{nobody}{rest}");
    let of_task = |rest: &str| format!("/v1/tasks/{nobody}{rest}");
    const GET: &[&str] = &["GET", "HEAD"];
    vec![
        (signer("/nonces"), &["GET", "HEAD", "POST"], "user"),
        (signer("/settlements"), &["POST"], "user"),
        (signer("/nonces/0/consume"), &["POST"], "user"),
        (signer("/nonces/0/release"), &["POST"], "user"),
        (signer("/nonces/2/resolve"), &["POST"], "admin"),
        (signer("/policy"), &["PUT"], "admin"),
        (signer(""), GET, "user"),
        ("/v1/signers".to_owned(), GET, "user"),
        ("/v1/leases".to_owned(), GET, "user"),
        (format!("/v1/leases/signer:{SIGNER}"), GET, "user"),
        ("/v1/cluster".to_owned(), GET, "user"),
        (format!("/v1/jobs/{}/events", "0".repeat(32)), &["GET"], "user"),
        ("/v1/events".to_owned(), &["GET"], "admin"),
        ("/v1/ids/snowflake".to_owned(), &["GET"], "user"),
        ("/v1/ids/snowflake/7".to_owned(), GET, "user"),
        ("/v1/ids/segments".to_owned(), GET, "user"),
        ("/v1/ids/segments/order".to_owned(), &["GET", "PUT"], "user"),
        ("/v1/ids/sequences".to_owned(), GET, "user"),
        ("/v1/ids/sequences/invoice".to_owned(), &["GET", "PUT"], "user"),
        ("/v1/ids/uuid".to_owned(), &["GET"], "user"),
        ("/api/segment/get/order".to_owned(), &["GET"], "user"),
        ("/api/snowflake/get/order".to_owned(), &["GET"], "user"),
        ("/v1/plans".to_owned(), &["GET", "HEAD", "POST"], "user"),
        (of_plan(""), GET, "user"),
        (of_plan("/tasks"), GET, "user"),
        (of_plan("/events"), &["GET"], "user"),
        (of_plan("/start"), &["POST"], "user"),
        (of_plan("/pause"), &["POST"], "user"),
        (of_plan("/resume"), &["POST"], "user"),
        (of_plan("/cancel"), &["POST"], "user"),
        (of_task(""), GET, "user"),
        (of_task("/stages"), GET, "user"),
        (of_task("/checkpoints"), GET, "user"),
        (of_task("/events"), &["GET"], "user"),
        (of_task("/pause"), &["POST"], "user"),
        (of_task("/resume"), &["POST"], "user"),
        (of_task("/cancel"), &["POST"], "user"),
        (of_task("/retry"), &["POST"], "user"),
        (of_task("/stages/1/resolve"), &["POST"], "admin"),
        ("/v1/tenants/acme".to_owned(), GET, "user"),
        ("/v1/tenants/acme/tasks".to_owned(), GET, "user"),
        ("/v1/tenants/acme/retry".to_owned(), &["POST"], "user"),
        ("/v1/tenants/acme/unlock".to_owned(), &["POST"], "admin"),
        ("/metrics".to_owned(), GET, "node"),
        ("/openapi.json".to_owned(), GET, "node"),
        ("/v1/whoami".to_owned(), GET, "node"),
        ("/".to_owned(), GET, ""),
        ("/assets/app.js".to_owned(), GET, ""),
        ("/healthz".to_owned(), GET, ""),
        ("/readyz".to_owned(), GET, ""),
    ]
}
