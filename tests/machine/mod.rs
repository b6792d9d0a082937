//! A node whose ranks are threads of this process, each with its own session and its own device, a host twin whose link can be slow and
//! which can be lost. The module also has the regions, on host and device, that the ranks of a test save and load.
#![allow(dead_code)] // Each test program uses a part of this.

use bivouac_core::comm::threads::world;
use bivouac_core::config::{Budget, Method, OffloadConfig, StaggerConfig};
use bivouac_core::device::host::{HostDevice, HostModel};
use bivouac_core::device::{Device, DeviceSpan, Priority, Stream};
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::{Attempt, Caches, Config, Level, Pending, Session};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;
pub const NAME: &str = "state";
pub const RANKS: u32 = 3;
pub const VICTIM: u32 = 1;

/// A node, and the settings with which its ranks run.
pub struct Machine {
    pub root: TempDir,
    pub memory_bytes: u64,
    pub device_bytes: u64,
    /// The sizes of the history's host memory and of its file, in bytes.
    pub history_bytes: [u64; 2],
    pub memory_enabled: bool,
    pub memory_only: bool,
    pub local_every: u64,
    pub workers: Workers,
    pub abandon: Duration,
    pub model: HostModel,
    pub stagger: StaggerConfig,
    pub method: Method,
    pub offload: OffloadConfig,
    /// The size of the buffer for marked checkpoints, in bytes of device memory.
    pub buffer_bytes: u64,
    /// The size of the device memory for chunk tables, in bytes.
    pub tables_bytes: u64,
}

impl Machine {
    pub fn new() -> Machine {
        Machine {
            root: TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("a folder"),
            memory_bytes: 256 * MIB,
            device_bytes: 32 * MIB,
            history_bytes: [1, 1],
            memory_enabled: true,
            memory_only: false,
            local_every: 1 << 40,
            workers: Workers::Threads,
            abandon: Duration::from_secs(20),
            model: HostModel { memory_bytes: 256 * MIB, ..HostModel::default() },
            stagger: StaggerConfig::default(),
            method: Method::Full,
            offload: OffloadConfig::default(),
            buffer_bytes: 2 * MIB,
            tables_bytes: 16 * MIB,
        }
    }

    /// A machine with links on which the regions of one version take this many seconds.
    pub fn slow(seconds: f64) -> Machine {
        let mut machine = Machine::new();
        machine.model.link_bytes_per_s = Some(DEVICE_BYTES as f64 / seconds);
        machine
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn config(&self) -> Config {
        self.config_in(self.root.path())
    }

    pub fn config_in(&self, root: &Path) -> Config {
        let mut config = Config::default();
        config.job.name = Some("device".into());
        config.job.block_bytes = 16 << 10;
        config.job.take_over = true;
        config.job.memory_enabled = self.memory_enabled;
        config.job.local.every = self.local_every.into();
        config.job.local_enabled = !self.memory_only;
        config.job.global_enabled = false;
        config.job.global_directory = root.join("global");
        config.job.timeouts.abandon = self.abandon;
        config.job.stagger = self.stagger;
        config.job.reduction.method = self.method;
        config.job.offload = self.offload;
        config.node.offload_buffer = Budget::Bytes(self.buffer_bytes);
        config.node.device_tables = Budget::Bytes(self.tables_bytes);
        config.job.timeouts.room = Duration::from_secs(10);
        config.node.memory_budget = Budget::Bytes(self.memory_bytes);
        config.node.memory_directory = root.join("memory");
        config.node.local_directory = Some(root.join("local"));
        config.node.local_allow_tmpfs = true;
        config.node.device_budget = Budget::Bytes(self.device_bytes);
        let [host, store] = self.history_bytes.map(Budget::Bytes);
        config.node.history.host_budget = host;
        config.node.history.store_budget = store;
        config
    }

    /// Runs `body` on all ranks, each on its own thread. The session is dropped afterwards, as in a job that dies.
    pub fn run<T: Send>(&self, ranks: u32, body: impl Fn(&Rank, &Session) -> T + Sync) -> Vec<T> {
        self.run_to_the_end(ranks, |rank, session| body(rank, &session))
    }

    pub fn run_to_the_end<T: Send>(&self, ranks: u32, body: impl Fn(&Rank, Session) -> T + Sync) -> Vec<T> {
        for folder in ["memory", "local"] {
            std::fs::create_dir_all(self.folder(folder)).expect("a folder");
        }
        let body = &body;
        std::thread::scope(|scope| {
            let start = |(rank, comm)| {
                let config = self.config();
                scope.spawn(move || {
                    let place = Place::here(&config, self.workers, "ranks".into()).expect("a place");
                    let session = Session::open_on(Box::new(comm), &place, config).expect("opens");
                    body(&Rank::new(rank, self.model), session)
                })
            };
            let started: Vec<_> = (0..ranks).zip(world(&vec![0; ranks as usize])).map(start).collect();
            started.into_iter().map(|rank| rank.join().expect("a rank failed")).collect()
        })
    }
}

/// A rank and its device.
pub struct Rank {
    pub rank: u32,
    pub device: Arc<dyn Device>,
    /// The device if it is a host twin; `None` for a GPU.
    pub twin: Option<Arc<HostDevice>>,
    pub stream: Arc<dyn Stream>,
}

pub const P_BYTES: usize = 2 << 20;
/// The region `q` ends inside a block, and not at a multiple of 64.
pub const Q_BYTES: usize = 100_001;
pub const MESH_BYTES: usize = 300_003;
pub const DEVICE_BYTES: u64 = (P_BYTES + Q_BYTES) as u64;

pub fn content(rank: u32, version: u64, what: u8, bytes: usize) -> Vec<u8> {
    let mut state = (u64::from(rank) << 40 ^ version << 8 ^ u64::from(what)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(bytes).collect()
}

impl Rank {
    pub fn new(rank: u32, model: HostModel) -> Rank {
        let twin = Arc::new(HostDevice::new(model));
        let stream = twin.stream(Priority::High).expect("a stream");
        Rank { rank, device: twin.clone(), twin: Some(twin), stream }
    }

    pub fn lose_device(&self) {
        self.twin.as_ref().expect("the device is a twin").lose("fell off the bus");
    }

    pub fn caches(&self, session: &Session) -> Caches {
        session.caches(self.device.clone()).expect("caches")
    }

    /// Allocates device memory with these bytes.
    pub fn span(&self, bytes: &[u8]) -> DeviceSpan {
        let span = self.device.allocate(bytes.len().max(1) as u64).and_then(|span| span.part(0, bytes.len() as u64));
        let span = span.expect("room");
        match &self.twin {
            // This bypasses the link, which may be slow.
            Some(twin) => twin.compute(&[&span], |slices| slices[0].copy_from_slice(bytes)),
            None => self.stream.upload(&[(bytes, span.clone())], None),
        }
        .expect("our own memory");
        span
    }

    pub fn bytes(&self, span: &DeviceSpan) -> Vec<u8> {
        let mut bytes = vec![0; span.bytes() as usize];
        match &self.twin {
            Some(twin) => twin.compute(&[span], |slices| bytes.copy_from_slice(slices[0])),
            None => self.stream.download(&mut [(span.clone(), &mut bytes)], None),
        }
        .expect("our own memory");
        bytes
    }

    /// Captures regions on host and device; on odd ranks, `q` is in host memory. Work on the same stream overwrites the
    /// captured memory at once.
    pub fn capture(&self, session: &Session, caches: &Caches, version: u64) -> bivouac_core::Result<Pending> {
        let rank = self.rank;
        let p = self.span(&content(rank, version, 1, P_BYTES));
        let (q, mesh) = (content(rank, version, 2, Q_BYTES), content(rank, version, 3, MESH_BYTES));
        let (q_device, empty) = (self.span(&q), self.span(&[]));
        let mut checkpoint = session.begin_checkpoint(NAME, version)?.with_device(caches, &*self.stream);
        checkpoint.save_device_shaped::<f64>("p", &p, &[64, (P_BYTES / 512) as u64])?;
        checkpoint.save("mesh", &mesh)?;
        match rank % 2 {
            0 => checkpoint.save_device::<u8>("q", &q_device)?,
            _ => checkpoint.save("q", &q)?,
        }
        checkpoint.save_device::<f32>("empty", &empty)?;
        checkpoint.value("version", &version)?;
        let pending = checkpoint.capture()?;
        self.stream.copy(&self.span(&vec![0xff; P_BYTES]), &p).expect("enqueued");
        self.stream.finish().expect("copied");
        Ok(pending)
    }

    /// Loads all regions into device memory, and loads all of them into host memory as well.
    pub fn load(&self, restorer: &mut Attempt) -> bivouac_core::Result<()> {
        let version: u64 = restorer.value("version")?;
        for (name, what, bytes) in [("p", 1, P_BYTES), ("q", 2, Q_BYTES), ("mesh", 3, MESH_BYTES), ("empty", 4, 0)] {
            let expected = content(self.rank, version, what, bytes);
            let (target, mut host) = (self.span(&vec![0; bytes]), vec![0u8; bytes]);
            match name {
                "p" => {
                    restorer.load_device::<f64>(name, &target, &*self.stream)?;
                    let mut values = vec![0.0f64; bytes / 8];
                    restorer.load(name, &mut values)?;
                    host.copy_from_slice(bytemuck::cast_slice(&values));
                    assert_eq!(restorer.shape(name)?, [64, (P_BYTES / 512) as u64]);
                }
                "empty" => restorer.load_device::<f32>(name, &target, &*self.stream)?,
                _ => {
                    restorer.load_device::<u8>(name, &target, &*self.stream)?;
                    restorer.load(name, &mut host)?;
                }
            }
            assert!(self.bytes(&target) == expected, "{name} of rank {} in device memory", self.rank);
            assert!(host == expected, "{name} of rank {} in host memory", self.rank);
        }
        Ok(())
    }

    /// Restores the newest version, and returns its number and the tier from which it came.
    pub fn restart(&self, session: &Session) -> Option<(u64, &'static str)> {
        let restored = session.begin_restore(NAME).run(|restorer| self.load(restorer)).expect("a restart");
        restored.map(|restored| (restored.version, restored.tier.name()))
    }

    /// Takes a checkpoint of host memory only.
    pub fn try_host(&self, session: &Session, version: u64) -> Result<Level, String> {
        let bytes = content(self.rank, version, 9, 4000);
        let mut checkpoint = session.begin_checkpoint("host", version).expect("begins");
        checkpoint.save("bytes", &bytes).expect("a region");
        committed(checkpoint.capture(), Level::Process)
    }

    pub fn take_host(&self, session: &Session, version: u64) {
        assert!(self.try_host(session, version).expect("committed") >= Level::Process);
    }
}

/// Takes a checkpoint of a device region and a host region. In the device region, some chunks change, some move, and some return from
/// much earlier versions.
pub fn take_reduced(rank: &Rank, session: &Session, caches: &Caches, version: u64) {
    let (device, mesh) = (reduced_content(version), content(0, 0, 3, MESH_BYTES));
    let p = rank.span(&device);
    let mut checkpoint = session.begin_checkpoint(NAME, version).expect("begins").with_device(caches, &*rank.stream);
    checkpoint.save("mesh", &mesh).expect("a region");
    checkpoint.save_device::<u8>("p", &p).expect("a region");
    reaches(checkpoint.capture(), Level::NodeReboot);
}

pub fn reduced_content(version: u64) -> Vec<u8> {
    let mut bytes = content(0, 0, 1, P_BYTES + 1000);
    for earlier in 1..=version as usize {
        bytes[earlier * 100_000..][..300].copy_from_slice(&content(0, earlier as u64, 2, 300));
        // The bytes move from their place in the first version; the sixth version brings back what the third brought.
        bytes.copy_within(512 * earlier..512 * earlier + 4096, 500_000);
        if earlier == 4 {
            bytes[100_000..400_000].fill(0);
        }
        if earlier == 6 {
            bytes[100_000..400_000].copy_from_slice(&reduced_content(3)[100_000..400_000]);
        }
    }
    bytes
}

/// Loads the regions of [`take_reduced`], and returns the version and the tier from which it came.
pub fn load_reduced(rank: &Rank, session: &Session) -> (u64, &'static str) {
    let (p, mut mesh) = (rank.span(&vec![0; P_BYTES + 1000]), vec![0u8; MESH_BYTES]);
    let load = |restorer: &mut Attempt| {
        restorer.load_device::<u8>("p", &p, &*rank.stream)?;
        Ok(restorer.load("mesh", &mut mesh)?)
    };
    let restored = session.begin_restore(NAME).run(load).expect("a restart").expect("the newest");
    assert!(rank.bytes(&p) == reduced_content(restored.version) && mesh == content(0, 0, 3, MESH_BYTES));
    (restored.version, restored.tier.name())
}

pub fn committed(pending: bivouac_core::Result<Pending>, level: Level) -> Result<Level, String> {
    pending.and_then(|pending| pending.wait(level)).map_err(|error| error.to_string())
}

/// Checks that the checkpoint is committed at the level. The first checkpoint of a run goes to every tier, so it may
/// already be at a higher level.
pub fn reaches(pending: bivouac_core::Result<Pending>, level: Level) {
    assert!(committed(pending, level).expect("committed") >= level);
}

/// Checks that all ranks heard which rank failed, and why.
pub fn names_the_victim(rank: u32, ended: Result<Level, String>, why: &str) {
    let error = ended.expect_err("the victim had no bytes");
    assert!(error.contains(&format!("rank {VICTIM}")) && error.contains(why), "rank {rank} heard: {error}");
}

/// Flips a bit in the only place of the folder's files that holds these bytes.
pub fn damage(folder: &Path, bytes: &[u8]) {
    let mut found = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read(&path).expect("readable");
        if let Some(at) = text.windows(bytes.len()).position(|window| window == bytes) {
            let file = std::fs::File::options().write(true).open(&path).expect("writable");
            file.write_all_at(&[bytes[0] ^ 1], at as u64).expect("written");
            found += 1;
        }
    }
    assert_eq!(found, 1, "the bytes are in one file");
}
