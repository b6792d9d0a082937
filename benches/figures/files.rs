//! What a file of the local tier holds of a rank's shard.

use bivouac::format::packed::{Outline, Packing, Placed, Stored, regions_of};
use bivouac::format::shard::Head;
use bivouac::format::{Content, Region};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A range of the bodies of a shard, and where it is stored.
pub struct Part {
    /// Its first byte.
    pub at: u64,
    /// How many bytes.
    pub length: u64,
    /// The operation of the checkpoint whose file stores it.
    pub operation: u64,
    /// Its first byte in the bodies of that checkpoint's shard.
    pub offset: u64,
    /// Is it new, and stored for this place?
    pub is_own: bool,
}

/// A file, and what it says.
pub struct File {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// The operation that took the checkpoint.
    pub operation: u64,
    /// What it refers to; `None` if it holds the whole shard.
    pub packing: Option<Packing>,
    /// The head of its contents.
    head: Head,
}

impl File {
    /// The file of a rank that writes alone, for a version of the only series below a folder.
    pub fn find(below: &Path, version: u64, rank: u32) -> File {
        let (mut folders, wanted) = (vec![below.to_owned()], format!("-v{version:010}-"));
        while let Some(folder) = folders.pop() {
            let path = folder.join(format!("r{rank:06}.bvs"));
            if folder.to_string_lossy().contains(&wanted) && path.exists() {
                return File::open(path);
            }
            let entries = std::fs::read_dir(&folder).expect("it is there").map(|entry| entry.expect("it can be read"));
            folders.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
        }
        panic!("version {version} of rank {rank} has no file below {}", below.display());
    }

    fn open(path: PathBuf) -> File {
        let file = std::fs::File::open(&path).expect("it is there");
        let read = |start: u64, bytes: u64| {
            let mut body = vec![0; bytes as usize];
            file.read_exact_at(&mut body, start).expect("it can be read");
            body
        };
        let body_offset = u64::from_le_bytes(read(120, 8).try_into().expect("eight bytes"));
        let head = Head::decode(&read(0, body_offset)).expect("the head of a shard");
        let packing = (head.header.content == Content::Packed).then(|| {
            let body = |region: &Region| read(body_offset + region.offset, region.bytes);
            let [first, sources, extents, frames, _] = regions_of(&head).expect("its regions").map(body);
            let outline = Outline::decode(&head, first, &sources).expect("a packed shard");
            Packing::decode(&head, outline, [&extents, &frames]).expect("a packed shard")
        });
        let bytes = file.metadata().expect("it has a length").len();
        File { path, bytes, operation: head.header.key.operation, packing, head }
    }

    /// Bytes of the shard that the file stores itself, the bytes that these occupy, and the number of extents.
    pub fn held(&self) -> (u64, u64, usize) {
        match &self.packing {
            Some(packing) => (packing.own_bytes(), packing.stored_bytes(), packing.extents.len()),
            None => {
                let bytes = self.head.meta.regions.iter().map(|region| region.bytes).sum();
                (bytes, bytes, 0)
            }
        }
    }

    /// The head of the shard that the file represents.
    pub fn shard(&self) -> &Head {
        self.packing.as_ref().map_or(&self.head, |packing| &packing.outline.head)
    }

    /// The place in the file of a range of the bodies that the file stores itself, without compression.
    pub fn place(&self, range: Range<u64>) -> Range<u64> {
        let start = match &self.packing {
            None => range.start,
            Some(packing) => {
                let own = self.head.region("bytes").expect("a packed shard has it").offset;
                own + packing.own_range(range.clone()).expect("it stores these bytes itself")
            }
        };
        let start = self.head.header.body_offset + start;
        start..start + (range.end - range.start)
    }

    /// Bytes of a file that holds the whole shard.
    pub fn whole_bytes(&self) -> u64 {
        self.shard().header.total_len + self.bytes - self.head.header.total_len
    }

    /// The parts of the shard, in the order of its bodies.
    pub fn parts(&self) -> Vec<Part> {
        let own = |at, length| Part { at, length, operation: self.operation, offset: at, is_own: true };
        let Some(packing) = &self.packing else {
            return self.head.meta.regions.iter().map(|region| own(region.offset, region.bytes)).collect();
        };
        let part = |extent: &Placed| {
            let part = own(extent.at, extent.length);
            match extent.stored {
                Stored::Own => part,
                Stored::Same { offset } => Part { offset, is_own: false, ..part },
                Stored::In { source, offset } => {
                    let operation = packing.outline.sources[source as usize].key.operation;
                    Part { operation, offset, is_own: false, ..part }
                }
            }
        };
        packing.extents.iter().map(part).collect()
    }
}
