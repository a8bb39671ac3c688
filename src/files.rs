//! The only home of writing files: durable, whole or not at all, and private where they are secret.

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat, open, openat, renameat, renameat_with,
    unlinkat,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What is wrong with a file or directory of ours, naming it.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused.
    #[error("{}: {doing}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The answer.
        source: std::io::Error,
    },
    /// A secret that others may read, or that is not a plain file of ours. Nothing is changed by us.
    #[error("{}: {problem}", path.display())]
    Unsafe {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A file of ours that does not say what such a file says.
    #[error("{}: is damaged: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of ours that a newer version wrote. Nothing is changed.
    #[error("{}: is of format {format}, and this version of holdfast reads {reads}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: u64,
        /// The newest that is read here.
        reads: u16,
    },
    /// The state directory is in use.
    #[error("{}: in use by process {pid}", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The holder.
        pid: String,
    },
}

/// How the names of copies begin that are not complete yet.
pub const STAGED: &str = ".staged-";

fn io(path: &Path, doing: &'static str) -> impl FnOnce(rustix::io::Errno) -> FileError {
    let path = path.to_owned();
    move |errno| FileError::Io { path, doing, source: errno.into() }
}

fn std_io(path: &Path, doing: &'static str) -> impl FnOnce(std::io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError::Io { path, doing, source }
}

/// Whether the error says that the file is not there.
pub fn is_absent(error: &FileError) -> bool {
    match error {
        FileError::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
        FileError::Unsafe { .. } | FileError::Damaged { .. } | FileError::Newer { .. } | FileError::Locked { .. } => {
            false
        }
    }
}

/// Makes a private directory (0700), or accepts one that is ours and private already.
pub fn private_dir(path: &Path) -> Result<(), FileError> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(0o700)) {
        Ok(()) => {
            let parent = parent_of(path);
            return sync_dir(parent);
        }
        Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(io(path, "making the directory")(errno)),
    }
    check_private_dir(path)
}

/// Refuses a state directory that is a link, has another owner or lets others in.
pub fn check_private_dir(path: &Path) -> Result<(), FileError> {
    let fd = open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .map_err(io(path, "opening the directory"))?;
    let stat = fstat(&fd).map_err(io(path, "looking at the directory"))?;
    let refuse = |problem: String| Err(FileError::Unsafe { path: path.to_owned(), problem });
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return refuse(format!("belongs to user {}, not to the user running this", stat.st_uid));
    }
    if stat.st_mode & 0o077 != 0 {
        let mode = stat.st_mode & 0o7777;
        return refuse(format!("is open to others (mode {mode:04o}); run chmod 0700 on it if nobody has read it"));
    }
    Ok(())
}

/// Reads a secret file of at most 64 KiB. A link, another owner, or any right of group or others is refused by name.
pub fn read_secret(path: &Path) -> Result<zeroize::Zeroizing<Vec<u8>>, FileError> {
    let mut bytes = zeroize::Zeroizing::new(Vec::new());
    open_private(path)?.take(64 * 1024).read_to_end(&mut bytes).map_err(std_io(path, "reading"))?;
    Ok(bytes)
}

/// Reads a file that [`create_once`] made of `length` bytes. Refused by name like a secret, and where it has another
/// length.
pub fn read_whole(path: &Path, length: usize) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::with_capacity(length + 1);
    let limit = u64::try_from(length).unwrap_or(u64::MAX).saturating_add(1);
    open_private(path)?.take(limit).read_to_end(&mut bytes).map_err(std_io(path, "reading"))?;
    if bytes.len() == length {
        return Ok(bytes);
    }
    let problem = format!("has {} bytes or more, and not {length}", bytes.len());
    Err(FileError::Damaged { path: path.to_owned(), problem })
}

/// Opens a plain file of ours that has one name and that nobody else may read.
fn open_private(path: &Path) -> Result<File, FileError> {
    let fd = open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
        .map_err(|errno| match errno {
            rustix::io::Errno::LOOP => FileError::Unsafe {
                path: path.to_owned(),
                problem: "is a symbolic link; it must be a plain file".into(),
            },
            errno => io(path, "opening")(errno),
        })?;
    let stat = fstat(&fd).map_err(io(path, "looking at it"))?;
    let refuse = |problem: String| Err(FileError::Unsafe { path: path.to_owned(), problem });
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refuse("is not a plain file".into());
    }
    if stat.st_nlink != 1 {
        return refuse("has more than one name (hard link); it must have one".into());
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return refuse(format!("belongs to user {}, not to the user running this", stat.st_uid));
    }
    if stat.st_mode & 0o077 != 0 {
        let mode = stat.st_mode & 0o7777;
        return refuse(format!(
            "can be read by others (mode {mode:04o}); if nobody has, run chmod 0600 on it, else replace it"
        ));
    }
    Ok(File::from(fd))
}

/// Reads a whole file that is not secret, at most `limit` bytes of it.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let fd = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(io(path, "opening"))?;
    let mut bytes = Vec::new();
    File::from(fd).take(limit).read_to_end(&mut bytes).map_err(std_io(path, "reading"))?;
    Ok(bytes)
}

/// Reads a document that says its `format`, at most `limit` bytes of it; none if there is no such file. Another format
/// than `reads` is refused by name, whatever else is in it.
pub fn document<T: DeserializeOwned>(path: &Path, limit: u64, reads: u16) -> Result<Option<T>, FileError> {
    #[derive(Deserialize)]
    struct Any {
        format: u64,
    }
    let bytes = match read(path, limit) {
        Ok(bytes) => bytes,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let damaged = |error: serde_json::Error| FileError::Damaged { path: path.to_owned(), problem: error.to_string() };
    let Any { format } = serde_json::from_slice(&bytes).map_err(damaged)?;
    if format != u64::from(reads) {
        return Err(FileError::Newer { path: path.to_owned(), format, reads });
    }
    serde_json::from_slice(&bytes).map(Some).map_err(damaged)
}

/// Creates a private file (0600) with these bytes unless one is there already: staged beside it, synced, renamed without
/// replacement. Whoever loses the race finds the winner's file. True if it was made here.
///
/// Renamed rather than linked: between a link and the removal of the staged name, or after a kill there, the file would
/// have two names, and [`read_secret`] would rightly refuse it.
pub fn create_once(path: &Path, bytes: &[u8]) -> Result<bool, FileError> {
    let (dir, name) = split(path)?;
    let (staged, _locked) = stage(&dir, path, bytes, 0o600)?;
    match renameat_with(&dir, &staged, &dir, name, RenameFlags::NOREPLACE) {
        Ok(()) => {
            rustix::fs::fsync(&dir).map_err(io(path, "syncing its directory"))?;
            Ok(true)
        }
        Err(errno) => {
            unlinkat(&dir, &staged, AtFlags::empty()).map_err(io(path, "removing the staged copy"))?;
            if errno == rustix::io::Errno::EXIST { Ok(false) } else { Err(io(path, "creating")(errno)) }
        }
    }
}

/// Replaces a private file (0600) whole: staged beside it, synced, renamed, directory synced. A kill leaves either the
/// old bytes or the new.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let (dir, name) = split(path)?;
    let (staged, _locked) = stage(&dir, path, bytes, 0o600)?;
    renameat(&dir, &staged, &dir, name).map_err(io(path, "replacing"))?;
    rustix::fs::fsync(&dir).map_err(io(path, "syncing its directory"))
}

/// Moves a file to another name in its directory, replacing what has it.
pub fn rename(from: &Path, to: &Path) -> Result<(), FileError> {
    let (dir, name) = split(from)?;
    let (_, next) = split(to)?;
    renameat(&dir, name, &dir, next).map_err(io(to, "replacing"))?;
    rustix::fs::fsync(&dir).map_err(io(to, "syncing its directory"))
}

/// Opens a private log file (0600) to be written at its end; begun anew when it is larger than `limit` bytes.
pub fn log(path: &Path, limit: u64) -> Result<File, FileError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::from_raw_mode(0o600)).map_err(io(path, "opening"))?);
    if file.metadata().map_err(std_io(path, "looking at it"))?.len() > limit {
        file.set_len(0).map_err(std_io(path, "emptying"))?;
    }
    Ok(file)
}

/// Removes a file if it is there.
pub fn remove(path: &Path) -> Result<(), FileError> {
    match rustix::fs::unlink(path) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(io(path, "removing")(errno)),
    }
}

/// Removes the staged copies that killed processes left in a directory; they may hold secrets. One that is locked is
/// somebody's at work.
pub fn remove_staged(dir: &Path) -> Result<(), FileError> {
    for entry in std::fs::read_dir(dir).map_err(std_io(dir, "listing the directory"))? {
        let entry = entry.map_err(std_io(dir, "listing the directory"))?;
        if !entry.file_name().to_string_lossy().starts_with(STAGED) {
            continue;
        }
        let path = entry.path();
        let fd = match open(&path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOENT) => continue,
            Err(errno) => return Err(io(&path, "opening")(errno)),
        };
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => remove(&path)?,
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(io(&path, "locking")(errno)),
        }
    }
    Ok(())
}

/// The names in a directory, none of which need be UTF-8 to be told apart.
pub fn names(dir: &Path) -> Result<Vec<String>, FileError> {
    let entries = std::fs::read_dir(dir).map_err(std_io(dir, "listing the directory"))?;
    let name =
        |entry: std::io::Result<std::fs::DirEntry>| entry.map(|entry| entry.file_name().to_string_lossy().into());
    entries.map(name).collect::<Result<_, _>>().map_err(std_io(dir, "listing the directory"))
}

/// Syncs a directory, so that names made or removed in it last.
pub fn sync_dir(path: &Path) -> Result<(), FileError> {
    let dir = open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(io(path, "opening"))?;
    rustix::fs::fsync(&dir).map_err(io(path, "syncing"))
}

/// A role's hold on a state directory. Kept until dropped; the descriptor is not inherited by children.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held for its lock")] OwnedFd);

/// Locks `<dir>/<role>.lock` for this process, or names the process that holds it.
pub fn lock(dir: &Path, role: &str) -> Result<Lock, FileError> {
    let path = dir.join(format!("{role}.lock"));
    let fd =
        open(&path, OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::from_raw_mode(0o600))
            .map_err(io(&path, "opening the lock"))?;
    let mut file = File::from(fd);
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid).map_err(std_io(&path, "reading the lock"))?;
            return Err(FileError::Locked { path, pid: pid.trim().to_owned() });
        }
        Err(errno) => return Err(io(&path, "locking")(errno)),
    }
    file.set_len(0).map_err(std_io(&path, "writing the lock"))?;
    write!(file, "{}", std::process::id()).map_err(std_io(&path, "writing the lock"))?;
    Ok(Lock(file.into()))
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn split(path: &Path) -> Result<(OwnedFd, &std::ffi::OsStr), FileError> {
    let name = path
        .file_name()
        .ok_or_else(|| FileError::Unsafe { path: path.to_owned(), problem: "is not a file name".into() })?;
    let dir = open(parent_of(path), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(io(path, "opening its directory"))?;
    Ok((dir, name))
}

/// Writes and syncs a copy under a name of its own. It is locked as long as the file that comes with its name is kept, so
/// that [`remove_staged`] leaves it alone.
fn stage(dir: &OwnedFd, path: &Path, bytes: &[u8], mode: u32) -> Result<(String, File), FileError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let staged = format!("{STAGED}{}", hex::encode(crate::entropy::bytes::<8>()));
        let fd = openat(dir, &staged, flags, Mode::from_raw_mode(mode)).map_err(io(path, "staging"))?;
        flock(&fd, FlockOperation::LockExclusive).map_err(io(path, "locking the staged copy"))?;
        if fstat(&fd).map_err(io(path, "looking at the staged copy"))?.st_nlink == 0 {
            // Taken for a killed process's between its making and its lock.
            continue;
        }
        let mut file = File::from(fd);
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if let Err(error) = written {
            // The staged copy is of no use to anybody; the error that matters is the first one.
            let _ = unlinkat(dir, &staged, AtFlags::empty());
            return Err(std_io(path, "writing")(error));
        }
        return Ok((staged, file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn problem(result: Result<impl std::fmt::Debug, FileError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn secrets_are_plain_private_files_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("signing.key");
        assert!(create_once(&key, b"one").unwrap());
        assert!(!create_once(&key, b"two").unwrap());
        assert_eq!(read_secret(&key).unwrap().as_slice(), b"one");
        let set = |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o640);
        assert!(problem(read_secret(&key)).contains("signing.key: can be read by others (mode 0640)"));
        set(0o600);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&key, &link).unwrap();
        assert!(problem(read_secret(&link)).contains("is a symbolic link"));
        std::fs::hard_link(&key, dir.path().join("hard")).unwrap();
        assert!(problem(read_secret(&key)).contains("more than one name"));
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        assert!(problem(read_secret(&folder)).contains("is not a plain file"));
        assert!(is_absent(&read_secret(&dir.path().join("none")).unwrap_err()));
    }

    #[test]
    fn a_file_is_replaced_whole_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("peers.json");
        replace(&file, b"old").unwrap();
        replace(&file, b"new").unwrap();
        assert_eq!(read(&file, 10).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        remove(&file).unwrap();
        remove(&file).unwrap();
    }

    #[test]
    fn only_staged_copies_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        replace(&dir.path().join("signing.key"), b"kept").unwrap();
        std::fs::write(dir.path().join(format!("{STAGED}07")), b"left").unwrap();
        let fd = open(dir.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (at_work, locked) = stage(&fd, &dir.path().join("ca.key"), b"coming", 0o600).unwrap();
        let left = || {
            remove_staged(dir.path()).unwrap();
            let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
            names.collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(left(), [at_work.as_str(), "signing.key"].map(Into::into).into());
        drop(locked);
        assert_eq!(left(), ["signing.key".into()].into());
    }

    #[test]
    fn one_process_of_a_role_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path(), "agent").unwrap();
        assert!(problem(lock(dir.path(), "agent")).ends_with(&format!("in use by process {}", std::process::id())));
        drop(held);
        lock(dir.path(), "agent").unwrap();
    }

    #[test]
    fn a_state_directory_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("state");
        private_dir(&inner).unwrap();
        private_dir(&inner).unwrap();
        std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert!(problem(private_dir(&inner)).contains("is open to others (mode 0750)"));
    }
}
