//! The only home of randomness: the kernel's generator.

use zeroize::Zeroizing;

/// Fresh random bytes.
///
/// # Panics
/// If the kernel refuses: without randomness no key, token or nonce may be made, and going on would be worse.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    #[expect(clippy::disallowed_methods, reason = "this is the one home of randomness")]
    getrandom::fill(&mut out).expect("the kernel gives random bytes");
    out
}

/// Fresh random bytes that are wiped when dropped.
pub fn secret() -> Zeroizing<[u8; 32]> {
    Zeroizing::new(bytes())
}

/// A new time-ordered identifier (UUIDv7, RFC 9562).
pub fn uuid() -> uuid::Uuid {
    let mut random: [u8; 10] = bytes();
    random[0] &= 0x0f;
    uuid::Builder::from_unix_timestamp_millis(crate::clock::wall().0, &random).into_uuid()
}
