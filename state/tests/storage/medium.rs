//! A medium in memory that remembers every operation, and what a disk may make of them when the power goes.

use state::store::Medium;
use std::io;
use std::sync::{Arc, Mutex};

/// What was asked of the medium.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Write(u64, Vec<u8>),
    Length(u64),
    Sync,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    live: Vec<u8>,
    ops: Vec<Op>,
}

impl Recorder {
    pub(crate) fn new(image: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Inner { live: image, ops: Vec::new() })))
    }

    pub(crate) fn boxed(&self) -> Box<dyn Medium> {
        Box::new(self.clone())
    }

    pub(crate) fn image(&self) -> Vec<u8> {
        self.0.lock().unwrap().live.clone()
    }

    pub(crate) fn ops(&self) -> Vec<Op> {
        self.0.lock().unwrap().ops.clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().ops.len()
    }
}

impl Op {
    /// Carries the operation out on an image, of a write only the first `torn` bytes if given.
    pub(crate) fn apply(&self, image: &mut Vec<u8>, torn: Option<usize>) {
        match self {
            Self::Write(offset, data) => {
                let (offset, n) = (*offset as usize, torn.unwrap_or(data.len()).min(data.len()));
                if offset + n > image.len() {
                    image.resize(offset + n, 0);
                }
                image[offset..offset + n].copy_from_slice(&data[..n]);
            }
            Self::Length(length) => image.resize(*length as usize, 0),
            Self::Sync => {}
        }
    }

    pub(crate) fn written(&self) -> Option<usize> {
        match self {
            Self::Write(_, data) => Some(data.len()),
            Self::Length(_) | Self::Sync => None,
        }
    }
}

impl Medium for Recorder {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.0.lock().unwrap().live.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let inner = self.0.lock().unwrap();
        let offset = offset as usize;
        let data = inner.live.get(offset..offset + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(data);
        Ok(())
    }

    fn set_len(&self, length: u64) -> Result<(), io::Error> {
        let mut inner = self.0.lock().unwrap();
        inner.live.resize(length as usize, 0);
        inner.ops.push(Op::Length(length));
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.0.lock().unwrap().ops.push(Op::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        let op = Op::Write(offset, data.to_vec());
        let mut inner = self.0.lock().unwrap();
        op.apply(&mut inner.live, None);
        inner.ops.push(op);
        Ok(())
    }
}
