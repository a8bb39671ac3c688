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
const PREFIX: &str = "hfr1_";

/// Makes the identity in `file`, which must not exist, and keeps its public half in the state directory. There is one
/// for ever: where the directory has one already, nothing is written.
pub fn make_recovery(dir: &Path, file: &Path) -> Result<(), KeyError> {
    check_recovery(dir, file)?;
    let secret = crate::entropy::secret();
    let public = PublicKey::from(&StaticSecret::from(*secret));
    let digits = Zeroizing::new(hex::encode(secret.as_slice()));
    let text = Zeroizing::new(format!(
        "# Recovery identity of a Holdfast fleet. Whoever has this line can open the fleet's snapshots, and without it\n\
         # nobody can. Take this file off the machine and keep it where you keep what must not be lost.\n\
         {PREFIX}{}\n",
        digits.as_str()
    ));
    if !files::create_once(file, text.as_bytes())? {
        return Err(taken(file));
    }
    if files::create_once(&dir.join(PUBLIC), format!("{}\n", hex::encode(public.as_bytes())).as_bytes())? {
        return Ok(());
    }
    files::remove(file)?;
    Err(taken(&dir.join(PUBLIC)))
}

/// Whether [`make_recovery`] could work, before anything is made: the directory may be absent still.
pub fn check_recovery(dir: &Path, file: &Path) -> Result<(), KeyError> {
    for path in [file, &dir.join(PUBLIC)] {
        if path.symlink_metadata().is_ok() {
            return Err(taken(path));
        }
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
