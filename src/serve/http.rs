//! Between HTTP and the authority's terms: requests as received, answers and refusals as sent.

use crate::authority::receipt::Answer;
use crate::authority::refusal::{self, Refused};
use crate::authority::request::Request;
use crate::limits;
use crate::serve::gate::Place;
use crate::serve::observed;
use crate::wire::peers::{HEADER_IDEMPOTENCY, HEADER_KEY, HEADER_NONCE, HEADER_SIGNATURE, HEADER_TIMESTAMP};
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use state::model::SigningKey;

/// A request with its whole body in hand.
pub struct Received {
    parts: Parts,
    /// The body; none if it is above the limit.
    pub body: Option<Bytes>,
}

impl Received {
    /// Reads the body, up to the limit of most listeners.
    pub async fn read(request: axum::extract::Request) -> Self {
        Self::read_up_to(limits::BODY, request).await
    }

    /// Reads the body, up to `limit` bytes.
    pub async fn read_up_to(limit: usize, request: axum::extract::Request) -> Self {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, limit).await.ok();
        Self { parts, body }
    }

    /// As the authority looks at it.
    pub fn as_seen<'a>(&'a self, place: &Place) -> Request<'a> {
        Request {
            method: self.parts.method.as_str(),
            path_and_query: self.path_and_query(),
            authorization: self.header(header::AUTHORIZATION.as_str()),
            key: self.header(HEADER_KEY),
            timestamp: self.header(HEADER_TIMESTAMP),
            signature: self.header(HEADER_SIGNATURE),
            nonce: self.header(HEADER_NONCE),
            body: self.body.as_deref(),
            source: place.source(),
            proven: place.is_proven(),
        }
    }

    /// Method, path and query, for receipts.
    pub fn route(&self) -> String {
        format!("{} {}", self.parts.method, self.path_and_query())
    }

    fn path_and_query(&self) -> &str {
        self.parts.uri.path_and_query().map_or("/", |path| path.as_str())
    }

    /// The query.
    pub fn query(&self) -> &str {
        self.parts.uri.query().unwrap_or_default()
    }

    /// The `Idempotency-Key`.
    pub fn idempotency(&self) -> Option<&str> {
        self.header(HEADER_IDEMPOTENCY)
    }

    /// The key that the request says it is signed with.
    pub fn key(&self) -> Option<SigningKey> {
        self.header(HEADER_KEY)?.parse().ok()
    }

    /// A header that is there exactly once, in plain characters.
    fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.parts.headers.get_all(name).iter();
        let value = values.next()?;
        if values.next().is_some() { None } else { value.to_str().ok() }
    }
}

/// An answer of 200 with this document.
pub fn ok<T: Serialize>(document: &T) -> Answer {
    Answer { status: 200, body: state::to_text(document) }
}

/// An answer of 204: there is nothing to say.
pub fn nothing() -> Answer {
    Answer { status: 204, body: String::new() }
}

/// What goes out.
pub fn respond(result: Result<Answer, Refused>) -> Response {
    match result {
        Ok(answer) => json(answer.status, "application/json", answer.body),
        Err(refused) => refuse(&refused),
    }
}

/// A refusal as it goes out.
pub fn refuse(refused: &Refused) -> Response {
    observed::refused(&refused.code);
    tracing::debug!(code = refused.code, status = refused.status, detail = refused.detail, "refused");
    let body = state::to_text(refused);
    let mut response = json(refused.status, "application/problem+json", body);
    if matches!(refused.status, 429 | 503) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if matches!(refused.status, 413 | 429) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A body that is JSON already.
pub fn json(status: u16, kind: &'static str, body: impl Into<Body>) -> Response {
    let status = StatusCode::from_u16(status).expect("our statuses are HTTP's");
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-store")];
    (status, headers, body.into()).into_response()
}

/// The one parameter of a query, `name=number`; none without a query.
pub fn number(query: &str, name: &str) -> Result<Option<u64>, Refused> {
    if query.is_empty() {
        return Ok(None);
    }
    let value = query.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')).and_then(|text| text.parse().ok());
    value.map(Some).ok_or_else(|| refusal::invalid(format!("the query is not `{name}=NUMBER`")))
}
