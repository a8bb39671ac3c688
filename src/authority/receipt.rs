//! The final answer to a change, kept so that whoever lost it gets the same bytes again.
//!
//! A receipt is encrypted under a key that its caller alone has: drawn from the `Idempotency-Key`, or at enrolment from
//! the token's secret. Neither is kept but as a hash, so no disk and no standby can read an answer's secrets.

use crate::authority::refusal::{Refused, problem};
use crate::cluster::ReceiptKey;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use state::model::{Fingerprint, Millis, NodeId};
use zeroize::Zeroizing;

/// The fewest hexadecimal digits of an `Idempotency-Key`: 128 bits.
const SHORTEST: usize = 32;
/// The most.
const LONGEST: usize = 128;

/// Where a receipt is kept, and what opens it.
pub struct Claim {
    /// The row.
    pub receipt: ReceiptKey,
    secret: Zeroizing<Vec<u8>>,
}

/// An answer as it went out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    request: Fingerprint,
    expires: Millis,
    answer: Answer,
}

impl Claim {
    /// By an `Idempotency-Key`. `caller` is who asks, as proven; `route` is method and path.
    pub fn by_header(value: &str, caller: String, route: String) -> Result<Self, Refused> {
        let long_enough = (SHORTEST..=LONGEST).contains(&value.len());
        if !long_enough || !value.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
            return Err(problem(
                400,
                "invalid",
                "the request was refused",
                "its Idempotency-Key is not 32 to 128 hexadecimal digits",
                "make one from at least 128 random bits for each change",
            ));
        }
        let key = state::hash_of(b"holdfast/idempotency/v1", &[value.as_bytes()]);
        let secret = Zeroizing::new(value.as_bytes().to_vec());
        Ok(Self { receipt: ReceiptKey { caller, route, key }, secret })
    }

    /// By the secret of an enrolment token, whoever asks: it may be spent once.
    pub fn by_token(secret: &[u8; 32]) -> Self {
        let key = state::hash_of(b"holdfast/idempotency/v1", &[secret]);
        let (caller, route) = (format!("token {key}"), "POST /v1/enroll".to_owned());
        Self { receipt: ReceiptKey { caller, route, key }, secret: Zeroizing::new(secret.to_vec()) }
    }

    /// By what a node's request says, where saying it again can only mean the same thing. `content` must be hard to
    /// guess for others, or the answer no secret.
    pub fn by_content(node: NodeId, route: &str, content: &[u8]) -> Self {
        let key = state::hash_of(b"holdfast/idempotency/v1", &[content]);
        let receipt = ReceiptKey { caller: format!("node {node}"), route: route.to_owned(), key };
        Self { receipt, secret: Zeroizing::new(content.to_vec()) }
    }

    /// Encrypts the answer to `request`: its body, or what else makes a repetition of it one.
    pub fn seal(&self, request: &[u8], answer: &Answer, expires: Millis) -> Vec<u8> {
        let kept = Kept { request: body_hash(request), expires, answer: answer.clone() };
        let mut text = state::to_bytes(&kept);
        let nonce: [u8; NONCE_LEN] = crate::entropy::bytes();
        self.key()
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(self.receipt.key.as_bytes()),
                &mut text,
            )
            .expect("a receipt is far below the cipher's limit");
        [nonce.as_slice(), &text].concat()
    }

    /// The answer that was kept and has not expired; an error if it was to another request.
    pub fn open(&self, request: &[u8], sealed: &[u8], now: Millis) -> Result<Option<Answer>, Refused> {
        let Some((nonce, text)) = sealed.split_first_chunk::<NONCE_LEN>() else { return Ok(None) };
        let mut text = Zeroizing::new(text.to_vec());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.key().open_in_place(nonce, Aad::from(self.receipt.key.as_bytes()), &mut text);
        let Some(kept) = opened.ok().and_then(|text| serde_json::from_slice::<Kept>(text).ok()) else {
            return Ok(None);
        };
        if kept.request == body_hash(request) {
            return Ok((now < kept.expires).then_some(kept.answer));
        }
        Err(problem(
            409,
            "conflict",
            "the request was refused",
            "its Idempotency-Key was used for another request",
            "make a new key for each change",
        ))
    }

    fn key(&self) -> LessSafeKey {
        let extracted = Salt::new(HKDF_SHA256, b"holdfast/receipt/v1").extract(&self.secret);
        let expanded = extracted.expand(&[b"answer"], &CHACHA20_POLY1305).expect("one key is within HKDF's limit");
        LessSafeKey::new(UnboundKey::from(expanded))
    }
}

fn body_hash(body: &[u8]) -> Fingerprint {
    Fingerprint::from_bytes(Sha256::digest(body).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_caller_with_the_same_request_gets_the_answer_again() {
        let claim = |key: &str| Claim::by_header(key, "node 1".into(), "POST /v1/peers/register".into()).ok().unwrap();
        let (one, two) = (claim(&"ab".repeat(16)), claim(&"cd".repeat(16)));
        let answer = Answer { status: 200, body: "{\"mesh_token\":\"secret\"}".into() };
        let sealed = one.seal(b"request", &answer, Millis(10));
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        assert_eq!(one.open(b"request", &sealed, Millis(9)), Ok(Some(answer)));
        assert_eq!(one.open(b"request", &sealed, Millis(10)), Ok(None));
        assert_eq!(one.open(b"another", &sealed, Millis(9)).unwrap_err().code, "conflict");
        assert_eq!(two.open(b"request", &sealed, Millis(9)), Ok(None));
        assert_eq!(one.open(b"request", b"short", Millis(9)), Ok(None));
        assert_ne!(one.receipt, two.receipt);
        for bad in ["", "ab", &"zz".repeat(16), &"ab".repeat(65)] {
            assert!(Claim::by_header(bad, String::new(), String::new()).is_err());
        }
    }

    /// A receipt as an earlier version kept it: what is encrypted is `{"request":…,"expires":…,"answer":…}`.
    const KEPT: &str = concat!(
        "8a37559cd3cde76b804ed80f4602301421fa7a03806c4fbf7e230f3c36639ad6019842dafac4af66f24e984da61dbede7a8c",
        "f230e0ccdc1b67792a5980fe9cf2fd003e8f4843d0968cd0dc3a7436ce860e22d3fdd92720a649980eb7c337f596e850d589",
        "9960ffad4f0934c1f8bc5e192cfbc422927d2ce6d611189a2e7e71b5b4e49231b34bd73a92360d9a25b00643936081cd7068",
        "c854e89edb"
    );
    /// The key of its row.
    const ROW: &str =
        "bff4d4f67bf0997b8331f768871599847c2eb354a54ae00901a571940776334952f4ca14abb15349e9486d9d3be27ffd";

    #[test]
    fn a_receipt_of_an_earlier_version_is_opened() {
        let claim = Claim::by_header(&"ab".repeat(16), "node 1".into(), "POST /v1/peers/register".into()).ok().unwrap();
        let answer = Answer { status: 200, body: "{}".into() };
        let opened = claim.open(b"request", &hex::decode(KEPT).unwrap(), Millis(9));
        assert_eq!(opened, Ok(Some(answer.clone())));
        let kept = Kept { request: body_hash(b"request"), expires: Millis(10), answer };
        let text = format!(
            "{{\"request\":\"{}\",\"expires\":10,\"answer\":{{\"status\":200,\"body\":\"{{}}\"}}}}",
            hex::encode(Sha256::digest(b"request"))
        );
        assert_eq!(state::to_text(&kept), text);
        assert_eq!(claim.receipt.row().key, hex::decode(ROW).unwrap());
    }
}
