//! The dashboard: the files of `dashboard/dist`, which are part of the binary, and how they are served.
//!
//! The files hold no data, so they need no token: the page asks for one and sends it with each request of its own. They
//! are served as they are, or as `npm run build` compressed them. What the page may load and send is in
//! [`CONTENT_POLICY`].

use std::sync::LazyLock;

use actix_web::http::header::{
    AcceptEncoding, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, ETAG, Encoding, EntityTag,
    Header, IfNoneMatch, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, web};
use sha2::{Digest, Sha256};
use wire::Code;

use crate::refusal::{Answer, Refusal};

/// The page loads and asks nothing but this daemon, runs no script of its own text, and is shown in no other page.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the dashboard.
struct File {
    /// The last part of its path.
    name: &'static str,
    content_type: &'static str,
    plain: &'static [u8],
    gzip: &'static [u8],
    /// The SHA-256 digest of `plain`, as hexadecimal digits.
    digest: LazyLock<String>,
}

macro_rules! file {
    ($path:literal, $content_type:literal) => {
        File {
            name: $path,
            content_type: $content_type,
            plain: include_bytes!(concat!("../../../dashboard/dist/", $path)),
            gzip: include_bytes!(concat!("../../../dashboard/dist/", $path, ".gz")),
            digest: LazyLock::new(|| {
                let plain: &[u8] = include_bytes!(concat!("../../../dashboard/dist/", $path));
                Sha256::digest(plain).iter().map(|byte| format!("{byte:02x}")).collect()
            }),
        }
    };
}

static PAGE: File = file!("index.html", "text/html; charset=utf-8");
static ASSETS: [File; 3] = [
    file!("app.js", "text/javascript; charset=utf-8"),
    file!("app.css", "text/css; charset=utf-8"),
    file!("icon.svg", "image/svg+xml"),
];

const TAGS: &str =
    "Tags (`ETag`) of what the caller has, with commas between them, or `*`. If one fits, the answer is 304";

/// Shows the dashboard
///
/// A page for people. It needs no token itself; it asks for one where tokens are configured.
#[utoipa::path(
    get, path = "/", tag = "operations", operation_id = "page",
    params(("If-None-Match" = Option<String>, Header, description = TAGS)),
    responses(
        (
            status = 200, description = "The page", body = String, content_type = "text/html",
            headers(("ETag" = String, description = "The tag of the page, in the form that is sent")),
        ),
        (
            status = 304, description = "The page that the caller has is the same",
            headers(("ETag" = String, description = "The tag of the page, in the form that the caller takes")),
        ),
    ),
)]
pub async fn page(request: HttpRequest) -> HttpResponse {
    serve(&PAGE, &request)
}

/// Gives a file of the dashboard
///
/// The script, the style sheet and the icon of the page at `/`. They need no token.
#[utoipa::path(
    get, path = "/assets/{file}", tag = "operations", operation_id = "page_asset",
    params(
        ("file" = String, Path, description = "`app.js`, `app.css` or `icon.svg`"),
        ("If-None-Match" = Option<String>, Header, description = TAGS),
    ),
    responses(
        (
            status = 200, description = "The file",
            content(
                (String = "text/javascript"),
                (String = "text/css"),
                (String = "image/svg+xml"),
            ),
            headers(("ETag" = String, description = "The tag of the file, in the form that is sent")),
        ),
        (
            status = 304, description = "The file that the caller has is the same",
            headers(("ETag" = String, description = "The tag of the file, in the form that the caller takes")),
        ),
    ),
)]
pub async fn asset(request: HttpRequest, name: web::Path<String>) -> Answer {
    let file = ASSETS.iter().find(|file| file.name == name.as_str());
    let file = file.ok_or_else(|| Refusal::new(Code::NotFound, "the dashboard has no such file"))?;
    Ok(serve(file, &request))
}

fn serve(file: &'static File, request: &HttpRequest) -> HttpResponse {
    let compresses = takes_gzip(request);
    let form = if compresses { "-gzip" } else { "" };
    let tag = EntityTag::new_strong(format!("{}{form}", &file.digest[..32]));
    if has_it(request, &tag) {
        return with_headers(HttpResponse::NotModified(), &tag).finish();
    }
    let mut answer = with_headers(HttpResponse::Ok(), &tag);
    answer.content_type(file.content_type);
    if compresses {
        answer.insert_header((CONTENT_ENCODING, "gzip"));
        return answer.body(Bytes::from_static(file.gzip));
    }
    answer.body(Bytes::from_static(file.plain))
}

fn with_headers(mut answer: HttpResponseBuilder, tag: &EntityTag) -> HttpResponseBuilder {
    answer
        .insert_header((ETAG, tag.to_string()))
        // The names stay the same from version to version, so a browser asks whether its copy is current.
        .insert_header((CACHE_CONTROL, "no-cache"))
        .insert_header((VARY, "accept-encoding"))
        .insert_header((CONTENT_SECURITY_POLICY, CONTENT_POLICY))
        .insert_header((X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((REFERRER_POLICY, "no-referrer"))
        .insert_header(("cross-origin-opener-policy", "same-origin"))
        .insert_header(("cross-origin-resource-policy", "same-origin"));
    answer
}

fn takes_gzip(request: &HttpRequest) -> bool {
    let supported = [Encoding::gzip(), Encoding::identity()];
    AcceptEncoding::parse(request)
        .is_ok_and(|accepted| accepted.negotiate(supported.iter()) == Some(Encoding::gzip()))
}

fn has_it(request: &HttpRequest, tag: &EntityTag) -> bool {
    match IfNoneMatch::parse(request) {
        Ok(IfNoneMatch::Any) => true,
        Ok(IfNoneMatch::Items(tags)) => tags.iter().any(|one| one.weak_eq(tag)),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use actix_web::body::to_bytes;
    use actix_web::test::TestRequest;
    use serde_json::Value;

    use super::*;

    /// Largest sum of the compressed files, in bytes.
    const GZIP_BYTES_MAX: usize = 80 << 10;

    fn all() -> impl Iterator<Item = &'static File> {
        std::iter::once(&PAGE).chain(&ASSETS)
    }

    fn answer(file: &'static File, headers: &[(&str, &str)]) -> HttpResponse {
        let request =
            headers.iter().fold(TestRequest::get(), |request, header| request.append_header(*header));
        serve(file, &request.to_http_request())
    }

    #[test]
    fn all_files_together_are_at_most_80_kib_compressed() {
        let bytes: usize = all().map(|file| file.gzip.len()).sum();
        assert!(bytes <= GZIP_BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn the_page_names_no_other_origin_and_has_no_script_of_its_own_text() {
        let page = std::str::from_utf8(PAGE.plain).unwrap();
        assert!(
            page.contains("src=\"/assets/app.js\"") && page.contains("href=\"/assets/app.css\""),
            "{page}"
        );
        assert!(!page.contains("://"), "{page}");
        assert_eq!(page.matches("<script").count(), 1, "{page}");
        assert!(!page.contains("<style") && !page.contains(" style="), "{page}");
        assert!(
            !page.contains(" onload") && !page.contains(" onerror") && !page.contains(" onclick"),
            "{page}"
        );
    }

    #[test]
    fn the_script_has_the_version_of_the_daemon() {
        let script = std::str::from_utf8(ASSETS[0].plain).unwrap();
        let version = concat!("\"", env!("CARGO_PKG_VERSION"), "\"");
        assert!(script.contains(version), "run npm run build in dashboard/: its script is not of {version}");
    }

    #[actix_web::test]
    async fn a_client_gets_the_form_that_it_takes() {
        for (accepted, compressed) in [
            (None, false),
            (Some("gzip"), true),
            (Some("gzip, deflate, br, zstd"), true),
            (Some("br"), false),
            (Some("identity"), false),
            (Some("gzip;q=0"), false),
            (Some("identity;q=1, gzip;q=0.5"), false),
            (Some("*"), false),
            (Some("gzip, identity;q=0"), true),
            (Some(";;=,"), false),
        ] {
            let given: Vec<_> = accepted.map(|value| ("accept-encoding", value)).into_iter().collect();
            for file in all() {
                let answer = answer(file, &given);
                assert_eq!(answer.headers().contains_key(CONTENT_ENCODING), compressed, "{accepted:?}");
                assert_eq!(answer.headers().get(VARY).unwrap(), "accept-encoding");
                assert_eq!(answer.headers().get("content-type").unwrap(), file.content_type);
                let body = to_bytes(answer.into_body()).await.unwrap();
                assert_eq!(body, if compressed { file.gzip } else { file.plain }, "{accepted:?}");
            }
        }
    }

    #[test]
    fn a_client_that_has_the_file_gets_304_with_the_same_headers() {
        for encoding in ["gzip", "identity"] {
            let first = answer(&PAGE, &[("accept-encoding", encoding)]);
            let tag = first.headers().get(ETAG).unwrap().to_str().unwrap().to_owned();
            let weak = format!("W/{tag}, \"x\"");
            for (known, status) in
                [(tag.as_str(), 304), ("*", 304), (weak.as_str(), 304), ("\"other\"", 200), ("", 200)]
            {
                let again = answer(&PAGE, &[("accept-encoding", encoding), ("if-none-match", known)]);
                assert_eq!(again.status().as_u16(), status, "{known}");
                for name in [ETAG, VARY, CACHE_CONTROL, CONTENT_SECURITY_POLICY] {
                    assert_eq!(again.headers().get(&name), first.headers().get(&name), "{name}");
                }
            }
        }
        let tag = |encoding| answer(&PAGE, &[("accept-encoding", encoding)]).headers().get(ETAG).cloned();
        assert_ne!(tag("gzip"), tag("identity"), "two forms of one file have one tag");
    }

    #[test]
    fn the_document_names_the_media_types_of_the_files_and_their_tags() {
        let document: Value = serde_json::from_str(&crate::openapi::document()).unwrap();
        for (path, files) in [("/", std::slice::from_ref(&PAGE)), ("/assets/{file}", &ASSETS[..])] {
            let operation = &document["paths"][path]["get"];
            let content = operation["responses"]["200"]["content"].as_object().unwrap();
            let documented: BTreeSet<_> = content.keys().map(String::as_str).collect();
            let served = files.iter().map(|file| file.content_type.split(';').next().unwrap());
            assert_eq!(documented, served.collect(), "{path}");
            for status in ["200", "304"] {
                let tag = &operation["responses"][status]["headers"]["ETag"];
                assert!(tag["schema"].is_object(), "{status} {path}: {tag}");
            }
            let mut parameters = operation["parameters"].as_array().unwrap().iter();
            let is_known = |one: &Value| one["in"] == "header" && one["name"] == "If-None-Match";
            assert!(parameters.any(is_known), "{path}");
        }
    }
}
