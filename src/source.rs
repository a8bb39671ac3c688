//! A directory as one archive: tar, compressed with zstd, and the same bytes whoever makes it and whenever.
//!
//! Entries are sorted, have no time and no owner, and of their rights only whether they can be executed. A link that
//! leads out, and whatever is neither file, directory nor link, is refused by name. Folders of version control (`.git`)
//! stay out: they change by themselves, and may hold somebody's password.

use crate::limits;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, open, openat, openat2, readlinkat, statat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use state::model::Fingerprint;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use tar::{Builder, EntryType, Header};

/// What is left out wherever it stands.
const LEFT_OUT: &str = ".git";
/// How hard zstd tries: its own default. Part of the format, since other levels give other bytes.
const LEVEL: i32 = 3;
/// Memory that an archive may make its reader hold, as a power of two: 8 MiB, twice what [`LEVEL`] uses.
const WINDOW: u32 = 23;

/// Why a directory is not made an archive, or bytes are none.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The archive, or what is in it, is above a limit.
    #[error("it has more than {} MiB, or {} MiB unpacked", limits::SOURCE >> 20, limits::SOURCE_CONTENT >> 20)]
    TooLarge,
    /// Something in the directory that no source has.
    #[error("{}: {why}", path.display())]
    Refused {
        /// What.
        path: PathBuf,
        /// Why.
        why: &'static str,
    },
    /// The operating system refused, or the bytes are no archive.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was looked at.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
}

fn failed(path: &Path) -> impl Fn(io::Error) -> SourceError {
    let path = path.to_owned();
    move |source| match source.kind() {
        io::ErrorKind::FileTooLarge => SourceError::TooLarge,
        _ => SourceError::Io { path: path.clone(), source },
    }
}

fn errno(path: &Path) -> impl Fn(Errno) -> SourceError {
    let failed = failed(path);
    move |errno| failed(errno.into())
}

/// The archive of a directory.
pub fn archive(root: &Path) -> Result<Vec<u8>, SourceError> {
    let dir = open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(errno(root))?;
    let packed = Limited { inner: Vec::new(), left: limits::SOURCE };
    let packing = zstd::Encoder::new(packed, LEVEL).map_err(failed(root))?;
    let mut tar = Builder::new(Limited { inner: packing, left: limits::SOURCE_CONTENT });
    Walk { root, top: dir.as_fd(), tar: &mut tar }.add_all(dir.as_fd(), Path::new(""))?;
    let packing = tar.into_inner().map_err(failed(root))?.inner;
    Ok(packing.finish().map_err(failed(root))?.inner)
}

/// The digest of what an archive holds, before it was compressed: it names the snapshot.
pub fn content(archive: &[u8]) -> Result<Fingerprint, SourceError> {
    let failed = failed(Path::new("the archive"));
    let mut reader = zstd::Decoder::with_buffer(archive).map_err(&failed)?;
    reader.window_log_max(WINDOW).map_err(&failed)?;
    let (mut hash, mut left) = (Sha256::new(), limits::SOURCE_CONTENT);
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let read = reader.read(&mut bytes).map_err(&failed)?;
        if read == 0 {
            return Ok(Fingerprint::from_bytes(hash.finalize().into()));
        }
        left = left.checked_sub(read).ok_or(SourceError::TooLarge)?;
        hash.update(&bytes[..read]);
    }
}

/// Takes so many bytes and no more.
struct Limited<W> {
    inner: W,
    left: usize,
}

impl<W: Write> Write for Limited<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        self.inner.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// On the way through a directory. Everything is opened below what is open already, so that nothing which changes
/// meanwhile leads elsewhere.
struct Walk<'a, W: Write> {
    root: &'a Path,
    top: BorrowedFd<'a>,
    tar: &'a mut Builder<W>,
}

impl<W: Write> Walk<'_, W> {
    /// Adds what is in the directory that is `under` in the archive.
    fn add_all(&mut self, dir: BorrowedFd<'_>, under: &Path) -> Result<(), SourceError> {
        let full = self.root.join(under);
        let errno = errno(&full);
        let mut names = Vec::new();
        for entry in Dir::read_from(dir).map_err(&errno)? {
            let name = OsStr::from_bytes(entry.map_err(&errno)?.file_name().to_bytes()).to_owned();
            if name != "." && name != ".." && name != LEFT_OUT {
                names.push(name);
            }
        }
        names.sort();
        names.iter().try_for_each(|name| self.add(dir, name, &under.join(name)))
    }

    fn add(&mut self, dir: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<(), SourceError> {
        let full = self.root.join(path);
        let refuse = |why| Err(SourceError::Refused { path: full.clone(), why });
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(errno(&full))?;
        let below = |flags| -> Result<OwnedFd, SourceError> {
            openat(dir, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).map_err(errno(&full))
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let opened = below(OFlags::DIRECTORY)?;
                let mut header = header(EntryType::Directory, 0o755);
                self.tar.append_data(&mut header, path, io::empty()).map_err(failed(&full))?;
                self.add_all(opened.as_fd(), path)
            }
            FileType::RegularFile => {
                let mut file = File::from(below(OFlags::NONBLOCK)?);
                let found = file.metadata().map_err(failed(&full))?;
                if !found.is_file() {
                    return refuse("changed while it was read");
                }
                let executable = Mode::from_raw_mode(stat.st_mode).contains(Mode::XUSR);
                let mut header = header(EntryType::Regular, if executable { 0o755 } else { 0o644 });
                header.set_size(found.len());
                let mut bytes = (&mut file).take(found.len());
                self.tar.append_data(&mut header, path, &mut bytes).map_err(failed(&full))?;
                let short = bytes.limit() > 0;
                let long = file.read(&mut [0]).map_err(failed(&full))? > 0;
                if short || long { refuse("changed while it was read") } else { Ok(()) }
            }
            FileType::Symlink => {
                let target = readlinkat(dir, name, Vec::new()).map_err(errno(&full))?.into_bytes();
                let target = PathBuf::from(std::ffi::OsString::from_vec(target));
                if leads_out(path, &target) || self.is_led_out(path) {
                    return refuse("is a link that leads out of the directory");
                }
                let mut header = header(EntryType::Symlink, 0o777);
                self.tar.append_link(&mut header, path, &target).map_err(failed(&full))
            }
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => refuse("is neither file, directory nor link"),
        }
    }

    /// Whether the kernel, on following this link now, leaves the directory: also by way of other links.
    fn is_led_out(&self, path: &Path) -> bool {
        let followed = openat2(self.top, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::BENEATH);
        followed.err() == Some(Errno::XDEV)
    }
}

/// Whether a link says by itself that it leads out, there being anything at its end or not.
fn leads_out(path: &Path, target: &Path) -> bool {
    use std::path::Component;
    let mut depth = path.components().count() - 1;
    target.components().any(|component| match component {
        Component::RootDir | Component::Prefix(_) => true,
        Component::CurDir => false,
        Component::Normal(_) => {
            depth += 1;
            false
        }
        Component::ParentDir => {
            let out = depth == 0;
            depth = depth.saturating_sub(1);
            out
        }
    })
}

fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn write(path: PathBuf, bytes: &[u8], mode: u32) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// The same source, made in another order, with other times and rights that do not count.
    fn source(reversed: bool) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let long = format!("deep/{}", "x".repeat(200));
        let mut files = [
            ("module.toml", &b"name = 'zsh'\n"[..], 0o644),
            ("bin/build", b"#!/bin/sh\n", 0o755),
            ("bin/zz", b"", 0o600),
            (&long, b"long", 0o640),
        ];
        if reversed {
            files.reverse();
            files.iter_mut().for_each(|file| file.2 |= 0o20);
            write(at(".git/config"), b"url = https://me:secret@example.org", 0o600);
        }
        files.iter().for_each(|(name, bytes, mode)| write(at(name), bytes, *mode));
        symlink("../module.toml", at("bin/manifest")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        dir
    }

    #[test]
    fn the_same_source_is_the_same_archive() {
        let (one, other) = (source(false), source(true));
        let made = archive(one.path()).unwrap();
        assert_eq!(made, archive(other.path()).unwrap());
        let held = zstd::decode_all(made.as_slice()).unwrap();
        assert_eq!(content(&made).unwrap(), Fingerprint::from_bytes(Sha256::digest(&held).into()));
        let mut told = tar::Archive::new(held.as_slice());
        let entries = told.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (0, 0, 0));
            format!("{} {:o}", entry.path().unwrap().display(), header.mode().unwrap())
        });
        let entries: Vec<String> = entries.collect();
        let long = format!("deep/{} 644", "x".repeat(200));
        let wanted = ["bin 755", "bin/build 755", "bin/manifest 777", "bin/zz 644", "dangling 777", "deep 755", &long];
        assert_eq!(entries, [&wanted[..], &["module.toml 644"]].concat());
        write(other.path().join("bin/zz"), b"!", 0o600);
        assert_ne!(content(&made).unwrap(), content(&archive(other.path()).unwrap()).unwrap());
    }

    #[test]
    fn what_leads_out_or_is_special_is_refused_by_name() {
        let refused = |make: &dyn Fn(&Path)| {
            let dir = source(false);
            make(dir.path());
            let error = archive(dir.path()).unwrap_err();
            assert!(matches!(error, SourceError::Refused { .. }), "{error}");
            error.to_string().replace(dir.path().to_str().unwrap(), "")
        };
        let out = "/bin/out: is a link that leads out of the directory";
        for target in ["/etc/passwd", "../../etc/passwd", "../nowhere/../../etc", "..//../x"] {
            assert_eq!(refused(&|dir| symlink(target, dir.join("bin/out")).unwrap()), out, "{target}");
        }
        let by_another = refused(&|dir| {
            symlink("..", dir.join("bin/top")).unwrap();
            symlink("top/../etc", dir.join("bin/out")).unwrap();
        });
        assert_eq!(by_another, out);
        let fifo = refused(&|dir| {
            let fifo = dir.join("pipe");
            rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        });
        assert_eq!(fifo, "/pipe: is neither file, directory nor link");
        let file = source(false);
        assert!(matches!(archive(&file.path().join("module.toml")), Err(SourceError::Io { .. })));
    }

    #[test]
    fn what_is_too_large_is_neither_made_nor_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("zeros")).unwrap();
        file.set_len(limits::SOURCE_CONTENT as u64).unwrap();
        assert!(matches!(archive(dir.path()), Err(SourceError::TooLarge)), "its head makes it too large");
        std::fs::remove_file(dir.path().join("zeros")).unwrap();
        let mut random = File::open("/dev/urandom").unwrap().take(limits::SOURCE as u64);
        io::copy(&mut random, &mut File::create(dir.path().join("random")).unwrap()).unwrap();
        assert!(matches!(archive(dir.path()), Err(SourceError::TooLarge)), "it does not shrink");
        let bomb = zstd::encode_all(io::repeat(0).take(limits::SOURCE_CONTENT as u64 + 1), 1).unwrap();
        assert!(matches!(content(&bomb), Err(SourceError::TooLarge)), "{} bytes", bomb.len());
        for bad in [&b""[..], b"no archive", &archive(source(false).path()).unwrap()[..40]] {
            assert!(matches!(content(bad), Err(SourceError::Io { .. })), "{bad:?}");
        }
    }
}
