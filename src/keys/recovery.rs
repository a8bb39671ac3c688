//! The recovery identity: what opens the fleet's snapshots when its appliance is gone.
//!
//! The file that is handed out holds an X25519 private key on one line, `hfr1_` and 64 hexadecimal digits, under lines
//! that begin with `#`. The appliance keeps only the public half, in `recovery.pub`: what it seals, it cannot open.

use super::KeyError;
use crate::files;
use std::path::Path;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

/// The public half, in the state directory.
const PUBLIC: &str = "recovery.pub";
/// The public half before the file with the private one is there: by it, a start that was killed between the two is
/// told from somebody else's file.
const PENDING: &str = "recovery.pending";
const PREFIX: &str = "hfr1_";

/// Makes the identity in `file`, which must not exist, and keeps its public half in the state directory. There is one
/// for ever: where the directory has one already, nothing is written. What a killed start left is completed.
pub fn make_recovery(dir: &Path, file: &Path) -> Result<(), KeyError> {
    check_recovery(dir, file)?;
    if !is_pending(dir, file)? {
        hand_out(dir, file)?;
    }
    let public = files::read_secret(&dir.join(PENDING))?;
    if !files::create_once(&dir.join(PUBLIC), &public)? {
        files::remove(file)?;
        return Err(taken(&dir.join(PUBLIC)));
    }
    Ok(files::remove(&dir.join(PENDING))?)
}

fn hand_out(dir: &Path, file: &Path) -> Result<(), KeyError> {
    let secret = crate::entropy::secret();
    files::replace(&dir.join(PENDING), public_half(*secret).as_bytes())?;
    let digits = Zeroizing::new(hex::encode(secret.as_slice()));
    let text = Zeroizing::new(format!(
        "# Recovery identity of a Holdfast fleet. Whoever has this line can open the fleet's snapshots, and without it\n\
         # nobody can. Take this file off the machine and keep it where you keep what must not be lost.\n\
         {PREFIX}{}\n",
        digits.as_str()
    ));
    if files::create_once(file, text.as_bytes())? { Ok(()) } else { Err(taken(file)) }
}

/// The line of `recovery.pub`.
fn public_half(secret: [u8; 32]) -> String {
    format!("{}\n", hex::encode(PublicKey::from(&StaticSecret::from(secret)).as_bytes()))
}

/// Whether `file` is what a killed start of this directory handed out.
fn is_pending(dir: &Path, file: &Path) -> Result<bool, KeyError> {
    let read = |path: &Path| match files::read_secret(path) {
        Err(error) if files::is_absent(&error) => Ok(None),
        other => other.map(Some),
    };
    let Some(pending) = read(&dir.join(PENDING))? else { return Ok(false) };
    let Some(text) = read(file)? else { return Ok(false) };
    let digits = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(PREFIX.as_bytes()));
    let mut secret = Zeroizing::new([0; 32]);
    let whole = digits.is_some_and(|digits| hex::decode_to_slice(digits, secret.as_mut_slice()).is_ok());
    Ok(whole && public_half(*secret).as_bytes() == pending.as_slice())
}

/// Whether the public half is there and whole. Beside a store a missing one is an error: one made anew would not be the
/// one that was handed out.
pub fn expect_recovery(dir: &Path) -> Result<(), KeyError> {
    super::read_bytes(&dir.join(PUBLIC)).map(drop)
}

/// Whether [`make_recovery`] could work, before anything is made: the directory may be absent still.
pub fn check_recovery(dir: &Path, file: &Path) -> Result<(), KeyError> {
    let public = dir.join(PUBLIC);
    if public.symlink_metadata().is_ok() {
        return Err(taken(&public));
    }
    if file.symlink_metadata().is_ok() && !is_pending(dir, file)? {
        return Err(taken(file));
    }
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if parent.is_dir() || parent == dir {
        return Ok(());
    }
    Err(KeyError::Malformed { path: file.to_owned(), problem: "is in a directory that does not exist" })
}

fn taken(path: &Path) -> KeyError {
    KeyError::Malformed { path: path.to_owned(), problem: "exists already, and a recovery identity is never replaced" }
}
