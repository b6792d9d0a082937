//! A tier in an object store: S3 and compatible stores, Google Cloud Storage, Azure Blob Storage.
//!
//! Names are those of a directory tier, `<root>/<job>/<group>/<name>/g…-v…-o…/…`, with `<root>` a URL like `s3://bucket/prefix`. There
//! are no folders, and nothing is renamed: an object appears under its name when all of it is there. A large one is uploaded in parts
//! while it is being made, several at once, with bounded memory; a small one is put as a whole. Nobody sees unfinished objects. A program
//! that dies leaves parts behind, which the store deletes by itself if the bucket has a rule for that.
//!
//! Runs find out who came first by puts that create an object and never replace one. If an answer is lost, the client tries again and
//! may find its own object. So each object carries a random word (`bvkword`) by which its maker recognises it.
//!
//! The client is the crate `object_store`, which is asynchronous. Its threads (`bvk-http`) belong to this tier, start with the first
//! call, and block every signal. Credentials, region, endpoint and proxy are taken from the variables that all programs for the store
//! know. They appear in no message and no object.
#![forbid(unsafe_code)]

use super::contract::{Around, Tier, Upload, Writers, read_whole};
use super::error::TierError;
use super::names::Series;
use super::owner::{STORE_FILE, STORE_MAX, id_of};
use super::records::Records;
use super::spec::TierId;
use super::storage::{Entry, FileLock, ReadFile, Stat};
use crate::base::log;
use crate::base::sync::{Condition, Guard, Lock, Order};
use crate::base::threads::{take_no_signals, without_signals};
use crate::base::{Clock, Incarnation, rng};
use crate::format::{Manifest, manifest};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Key;
use object_store::{
    Attribute, Attributes, BackoffConfig, ClientOptions, Error, GetOptions, ObjectStore, ObjectStoreExt,
    ObjectStoreScheme, PutMode, PutMultipartOptions, PutOptions, RetryConfig,
};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tokio::runtime::{Builder, Handle, Runtime};

/// The attribute that holds the word by which an object's maker recognises it. (Azure allows no hyphens in names.)
const WORD: Attribute = Attribute::Metadata(Cow::Borrowed("bvkword"));
/// The minimum size of a part in bytes, and the maximum number of parts per object. Stores accept 10,000 parts.
const PART_MIN: u64 = 8 << 20;
const PARTS_MAX: u64 = 9_000;
/// Parts of one object that are on their way at once.
const IN_FLIGHT: usize = 4;
/// Threads that read a shard ahead: each answer takes a while, but the store gives many at once.
const READERS: usize = 8;
const THREADS: usize = 2;
/// How often a put with an unknown outcome is tried.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// The maximum number of characters of an answer that a message repeats.
const TEXT_MAX: usize = 400;
/// The maximum size of a claim or a mark in bytes.
const RECORD_MAX: u64 = 64 << 10;
/// How long a tool repeats a call that fails for temporary reasons.
const PATIENCE: Duration = Duration::from_secs(60);

trait Store: ObjectStore + MultipartStore {}
impl<T: ObjectStore + MultipartStore> Store for T {}

// ------------------------------------------------------------------------------------------- the client

/// The store, and the threads that talk to it.
struct Client {
    store: Arc<dyn Store>,
    threads: Lock<Option<(u32, Runtime)>>,
}

impl Client {
    /// A handle to the threads, which the first call starts. Neither they nor the threads that they start take signals.
    fn handle(&self) -> io::Result<Handle> {
        let mut threads = locked(&self.threads);
        let (_, runtime) = match &mut *threads {
            Some(running) => running,
            none => {
                let made = without_signals(|| {
                    let mut threads = Builder::new_multi_thread();
                    threads.worker_threads(THREADS).thread_name("bvk-http").on_thread_start(take_no_signals);
                    threads.enable_all().build()
                })?;
                none.insert((std::process::id(), made?))
            }
        };
        Ok(runtime.handle().clone())
    }

    /// Makes a call and waits until it ends.
    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(Arc<dyn Store>) -> BoxFuture<'static, object_store::Result<T>>,
    ) -> io::Result<T> {
        let (tell, told) = sync_channel(1);
        let future = call(self.store.clone());
        self.handle()?.spawn(async move { _ = tell.send(future.await) });
        told.recv().map_err(|_| io::Error::other("the program is ending"))?.map_err(io_error)
    }

    /// Puts an object if none of that name exists. `false` if somebody else's object exists.
    fn create(&self, key: &Key, bytes: &Bytes) -> io::Result<bool> {
        let word = word()?;
        let mut failure = None;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            let options = PutOptions { mode: PutMode::Create, attributes: named(&word), ..PutOptions::default() };
            let (to, payload) = (key.clone(), bytes.clone());
            let error =
                match self.call(|store| Box::pin(async move { store.put_opts(&to, payload.into(), options).await })) {
                    Ok(_) => return Ok(true),
                    Err(error) => error,
                };
            if !is_open(error.kind()) {
                return Err(error);
            }
            // The object that "exists" may come from our own first attempt, whose answer was lost.
            match self.word_of(key)? {
                Some(found) => return Ok(found == word),
                None => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| io::ErrorKind::TimedOut.into()))
    }

    /// The word of an object: empty for an object without a word, `None` if there is no object.
    fn word_of(&self, key: &Key) -> io::Result<Option<String>> {
        let key = key.clone();
        let options = GetOptions { head: true, ..GetOptions::default() };
        let found =
            self.call(|store| Box::pin(async move { store.get_opts(&key, options).await.map(|got| got.attributes) }));
        match found {
            Ok(attributes) => Ok(Some(attributes.get(&WORD).map_or_else(String::new, |word| word.to_string()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        match locked(&self.threads).take() {
            Some((process, runtime)) if process == std::process::id() => runtime.shutdown_background(),
            // A forked child has none of the threads.
            Some((_, runtime)) => std::mem::forget(runtime),
            None => {}
        }
    }
}

fn locked<T>(mutex: &Lock<T>) -> Guard<'_, T> {
    mutex.lock()
}

fn word() -> io::Result<String> {
    rng::incarnation().map(|word| word.to_string())
}

fn named(word: &str) -> Attributes {
    Attributes::from_iter([(WORD, word.to_owned())])
}

/// Can a put that failed in this way have succeeded nevertheless?
fn is_open(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{AlreadyExists, ConnectionAborted, TimedOut};
    matches!(kind, AlreadyExists | ConnectionAborted | TimedOut)
}

/// Converts an error. Its kind follows from its type, or else from the status in its text, because errors of lists have
/// no more specific type.
fn io_error(error: Error) -> io::Error {
    let mut chain: Vec<&(dyn std::error::Error + 'static)> = vec![&error];
    while let Some(next) = chain.last().and_then(|last| last.source()) {
        chain.push(next);
    }
    let (text, cause) = (error.to_string(), chain.last().map(ToString::to_string).unwrap_or_default());
    let status = text.split_once("non-2xx status code: ").and_then(|(_, rest)| rest.get(..3)?.parse::<u16>().ok());
    let transport = chain.iter().find_map(|of| of.downcast_ref::<HttpError>()).map(HttpError::kind);
    let kind = match (&error, transport, status) {
        _ if chain.iter().any(|of| of.is::<Full>()) => io::ErrorKind::StorageFull,
        (Error::NotFound { .. }, ..) | (_, _, Some(404)) => io::ErrorKind::NotFound,
        (Error::AlreadyExists { .. } | Error::Precondition { .. }, ..) => io::ErrorKind::AlreadyExists,
        (Error::PermissionDenied { .. } | Error::Unauthenticated { .. }, ..) | (_, _, Some(401 | 403)) => {
            io::ErrorKind::PermissionDenied
        }
        (_, Some(HttpErrorKind::Timeout), _) => io::ErrorKind::TimedOut,
        (_, Some(_), _) | (_, _, Some(429 | 500..)) => io::ErrorKind::ConnectionAborted,
        _ => io::ErrorKind::Other,
    };
    let text = if text.contains(&cause) { text } else { format!("{text}: {cause}") };
    io::Error::new(kind, text.chars().take(TEXT_MAX).collect::<String>())
}

/// A store has no room. This is reported at once, and the call is not repeated.
#[derive(Debug, thiserror::Error)]
#[error("the store has no room left (status {0})")]
struct Full(u16);

/// Makes sure that a full store is distinguished from a store in trouble.
#[derive(Debug)]
struct Watch;

#[derive(Debug)]
struct Watched(HttpClient);

impl HttpConnector for Watch {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Watched(ReqwestConnector::default().connect(options)?)))
    }
}

#[async_trait::async_trait]
impl HttpService for Watched {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.0.execute(request).await?;
        let status = answer.status().as_u16();
        if !matches!(status, 400 | 403 | 413 | 503 | 507) {
            return Ok(answer);
        }
        let (parts, body) = answer.into_parts();
        let body = body.bytes().await?;
        let says = |word: &str| body.windows(word.len()).any(|part| part == word.as_bytes());
        if status == 507 || ["QuotaExceeded", "StorageFull", "InsufficientCapacity"].into_iter().any(says) {
            return Err(HttpError::new(HttpErrorKind::Unknown, Full(status)));
        }
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

// ------------------------------------------------------------------------------------------- the tier

/// A tier in an object store.
#[derive(Clone)]
pub struct ObjectTier {
    kind: TierId,
    /// The URL, as the path with which all names begin.
    root: PathBuf,
    prefix: Key,
    client: Arc<Client>,
    can_fence: Arc<OnceLock<bool>>,
}

/// The object tier of a configuration.
///
/// # Errors
/// The configuration has no object tier, or its URL cannot be used.
pub fn make(around: &Around<'_>) -> Result<Arc<dyn Tier>, String> {
    let job = &around.config.job;
    let url = job.object_url.as_deref().ok_or("object tier: object.url is not set")?;
    // Trying for longer than the root waits helps nobody.
    ObjectTier::open(url, job.object_endpoint.as_deref(), job.timeouts.abandon / 2)
        .map(|tier| Arc::new(tier) as Arc<dyn Tier>)
}

/// The tier at a URL, for tools. `endpoint` names a server that is not the usual one.
///
/// # Errors
/// As [`make`].
pub fn at(url: &str, endpoint: Option<&str>) -> Result<Arc<dyn Tier>, String> {
    ObjectTier::open(url, endpoint, PATIENCE).map(|tier| Arc::new(tier) as Arc<dyn Tier>)
}

impl ObjectTier {
    /// The tier at a URL like `s3://bucket/prefix`. Nothing is sent yet. A call that fails for temporary reasons is repeated for
    /// `patience`, at most three minutes.
    ///
    /// # Errors
    /// The URL, or a variable of the environment, is wrong.
    pub fn open(url: &str, endpoint: Option<&str>, patience: Duration) -> Result<ObjectTier, String> {
        let variables: Vec<(String, String)> = std::env::vars().collect();
        ObjectTier::open_with(url, endpoint, patience, &variables)
    }

    /// Opens the tier with these variables instead of those of the environment; otherwise as [`ObjectTier::open`].
    ///
    /// # Errors
    /// As [`ObjectTier::open`].
    pub fn open_with(
        url: &str,
        endpoint: Option<&str>,
        patience: Duration,
        variables: &[(impl AsRef<str>, String)],
    ) -> Result<ObjectTier, String> {
        let wrong = |why: String| format!("object tier: {url} cannot be used: {why}");
        let parsed = url::Url::parse(url).map_err(|error| wrong(error.to_string()))?;
        let (scheme, prefix) = ObjectStoreScheme::parse(&parsed).map_err(|error| wrong(error.to_string()))?;
        // If the program has already chosen another provider, that provider is used.
        _ = rustls::crypto::ring::default_provider().install_default();
        let backoff =
            BackoffConfig { init_backoff: Duration::from_millis(200), max_backoff: Duration::from_secs(10), base: 2.0 };
        let limit = patience.min(Duration::from_secs(180));
        let retry = RetryConfig { backoff, max_retries: 12, retry_timeout: limit };
        macro_rules! build {
            ($builder:ty, $prefix:literal, $endpoint:ident) => {{
                let mut builder = <$builder>::new().with_url(url);
                let own = [("timeout", "600s"), ("connect_timeout", "10s"), ("read_timeout", "60s")];
                for (key, value) in own {
                    builder = builder.with_config(key.parse().map_err(|error: Error| wrong(error.to_string()))?, value);
                }
                // Variables of the environment override these values, and the configuration overrides the variables.
                let named = variables.iter().filter(|(name, _)| name.as_ref().starts_with($prefix));
                for (name, value) in named {
                    if let Ok(key) = name.as_ref().to_ascii_lowercase().parse() {
                        builder = builder.with_config(key, value);
                    }
                }
                if let Some(endpoint) = endpoint {
                    let key = stringify!($endpoint).parse().map_err(|error: Error| wrong(error.to_string()))?;
                    builder = builder.with_config(key, endpoint);
                    let allow = "allow_http".parse().map_err(|error: Error| wrong(error.to_string()))?;
                    builder = builder.with_config(allow, endpoint.starts_with("http://").to_string());
                }
                let built = builder.with_retry(retry).with_http_connector(Watch).build();
                Arc::new(built.map_err(|error| wrong(io_error(error).to_string()))?) as Arc<dyn Store>
            }};
        }
        let store = match scheme {
            ObjectStoreScheme::AmazonS3 => build!(AmazonS3Builder, "AWS_", aws_endpoint),
            ObjectStoreScheme::GoogleCloudStorage => build!(GoogleCloudStorageBuilder, "GOOGLE_", google_base_url),
            ObjectStoreScheme::MicrosoftAzure => build!(MicrosoftAzureBuilder, "AZURE_", azure_storage_endpoint),
            other => return Err(wrong(format!("{other:?} is not an object store that this build supports"))),
        };
        Ok(ObjectTier::over(store, url, prefix))
    }

    /// A tier over a store in this process, for tests of the layers above it.
    pub fn in_memory() -> ObjectTier {
        ObjectTier::over(Arc::new(object_store::memory::InMemory::new()), "memory://bucket/prefix", Key::from("prefix"))
    }

    fn over(store: Arc<dyn Store>, url: &str, prefix: Key) -> ObjectTier {
        let root = PathBuf::from(url.trim_end_matches('/'));
        let client = Arc::new(Client { store, threads: Lock::default() });
        ObjectTier { kind: TierId::OBJECT, root, prefix, client, can_fence: Arc::default() }
    }

    /// What the store calls a path below the root.
    fn key(&self, path: &Path) -> io::Result<Key> {
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let below = path.strip_prefix(&self.root).map_err(|error| wrong(error.to_string()))?;
        let parts = below.iter().map(|part| part.to_str()).collect::<Option<Vec<_>>>();
        let parts = parts.ok_or_else(|| wrong("the name is not UTF-8".into()))?;
        let mut text = self.prefix.to_string();
        for part in parts {
            text += if text.is_empty() { "" } else { "/" };
            text += part;
        }
        // `Key::from` is not used, because it would write some characters differently.
        Key::parse(&text).map_err(|error| wrong(error.to_string()))
    }

    fn get(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        read_whole(&*self.open_file(path)?, limit)
    }

    fn open_file(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let key = self.key(path)?;
        let asked = key.clone();
        let bytes = self.client.call(|store| Box::pin(async move { store.head(&asked).await }))?.size;
        Ok(Box::new(ObjectFile { client: self.client.clone(), key, bytes }))
    }

    fn io<T>(&self, action: &'static str, path: &Path, result: io::Result<T>) -> Result<T, TierError> {
        result.map_err(|source| TierError::io(self.kind, action, path, source))
    }

    /// Does the store refuse a second object with the same name? This is tested, because not every store that accepts
    /// the condition respects it.
    fn probe(&self) -> io::Result<bool> {
        let path = self.root.join(format!("probe-{}", word()?));
        let key = self.key(&path)?;
        let first = self.client.create(&key, &Bytes::from_static(b"1"))?;
        let second = self.client.create(&key, &Bytes::from_static(b"2"));
        self.remove_file(&path)?;
        Ok(first && !second?)
    }
}

impl Tier for ObjectTier {
    fn kind(&self) -> TierId {
        self.kind
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn begin(&self, file: &Path, _writers: Writers<'_>) -> Result<Box<dyn Upload>, TierError> {
        let key = self.io("create", file, self.key(file))?;
        let shared = Shared::new(&self.client, key, self.io("create", file, word())?);
        Ok(Box::new(ObjectUpload { kind: self.kind, path: file.to_owned(), shared: Arc::new(shared) }))
    }

    fn open(&self, file: &Path) -> io::Result<Box<dyn ReadFile>> {
        self.open_file(file)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        let key = self.key(folder)?;
        let found = self.client.call(|store| Box::pin(async move { store.list_with_delimiter(Some(&key)).await }))?;
        let name = |key: &Key| key.filename().map(str::to_owned);
        let folders = found.common_prefixes.iter().filter_map(name).map(|name| Entry { name, is_dir: true });
        let files =
            found.objects.iter().filter_map(|meta| name(&meta.location)).map(|name| Entry { name, is_dir: false });
        let mut entries: Vec<Entry> = folders.chain(files).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        // A folder exists only if it contains something.
        if entries.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(entries) }
    }

    fn stat(&self, file: &Path) -> io::Result<Stat> {
        let key = self.key(file)?;
        let meta = self.client.call(|store| Box::pin(async move { store.head(&key).await }))?;
        Ok(Stat { bytes: meta.size, modified: SystemTime::from(meta.last_modified), is_odd: false })
    }

    fn put(&self, file: &Path, bytes: &[u8]) -> io::Result<()> {
        let (key, bytes) = (self.key(file)?, Bytes::copy_from_slice(bytes));
        self.client.call(|store| Box::pin(async move { store.put(&key, bytes.into()).await })).map(drop)
    }

    fn remove_file(&self, file: &Path) -> io::Result<()> {
        let key = self.key(file)?;
        match self.client.call(|store| Box::pin(async move { store.delete(&key).await })) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn remove_folder(&self, _folder: &Path) -> io::Result<()> {
        Ok(())
    }

    fn hold_store(&self, fresh: Incarnation, _clock: &dyn Clock) -> Result<Incarnation, TierError> {
        if let Some(found) = self.find_store()? {
            return Ok(found);
        }
        let path = self.root.join(STORE_FILE);
        let made = self.key(&path).and_then(|key| self.client.create(&key, &Bytes::from(format!("{fresh}\n"))));
        self.io("create", &path, made)?;
        // Somebody else may have been faster.
        let found = self.find_store()?;
        self.io("read", &path, found.ok_or_else(|| io::ErrorKind::NotFound.into()))
    }

    fn find_store(&self) -> Result<Option<Incarnation>, TierError> {
        let path = self.root.join(STORE_FILE);
        let bytes = match self.get(&path, STORE_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => self.io("read", &path, other)?,
        };
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "it holds no store id");
        self.io("read", &path, id_of(&bytes).ok_or_else(wrong)).map(Some)
    }

    fn records(&self) -> Arc<dyn Records> {
        Arc::new(self.clone())
    }

    fn can_fence(&self) -> bool {
        *self.can_fence.get_or_init(|| {
            self.probe().unwrap_or_else(|error| {
                log::warn!("event=fence-not-probed path={} error={error}", self.root.display());
                false
            })
        })
    }

    /// Creates the manifest. An existing one is replaced only if it belongs to the same checkpoint: of two runs with the
    /// same number, only one finishes.
    fn write_manifest(&self, series: &Series, manifest: &Manifest) -> Result<(), TierError> {
        let folder = manifest.key.folder();
        let path = self.series_path(series).join(&folder).join(manifest::FILE_NAME);
        let format = |source| TierError::Format { tier: self.kind, path: path.clone(), source };
        let bytes = Bytes::from(manifest.encode().map_err(format)?);
        let key = self.io("write", &path, self.key(&path))?;
        if self.io("write", &path, self.client.create(&key, &bytes))? {
            return Ok(());
        }
        match self.read_manifest(series, &folder) {
            Ok(found) if found.key != manifest.key => {
                let (found, expected) =
                    (format!("the manifest of run {}", found.key.incarnation), manifest.key.incarnation);
                Err(TierError::Foreign { tier: self.kind, path, found, expected: format!("that of run {expected}") })
            }
            _ => self.io("write", &path, self.put(&path, &bytes)),
        }
    }
}

impl Records for ObjectTier {
    fn create(&self, path: &Path, bytes: &[u8], _clock: &dyn Clock) -> io::Result<Option<Box<dyn FileLock>>> {
        match self.client.create(&self.key(path)?, &Bytes::copy_from_slice(bytes))? {
            true => Ok(None),
            false => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.get(path, limit)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        Tier::list(self, folder)
    }

    fn is_held(&self, _path: &Path) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn changed(&self, path: &Path) -> io::Result<SystemTime> {
        self.stat(path).map(|stat| stat.modified)
    }

    fn touch(&self, path: &Path) -> io::Result<()> {
        let bytes = self.get(path, RECORD_MAX)?;
        self.put(path, &bytes)
    }

    fn mark(&self, path: &Path) -> io::Result<()> {
        self.put(path, &[])
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.remove_file(path)
    }
}

// ------------------------------------------------------------------------------------------- reading

struct ObjectFile {
    client: Arc<Client>,
    key: Key,
    bytes: u64,
}

impl ReadFile for ObjectFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let range = offset..offset + buffer.len() as u64;
        if range.end > self.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if range.is_empty() {
            return Ok(());
        }
        let key = self.key.clone();
        let got = self.client.call(|store| Box::pin(async move { store.get_range(&key, range).await }))?;
        if got.len() != buffer.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer.copy_from_slice(&got);
        Ok(())
    }

    fn readers(&self) -> usize {
        READERS
    }
}

/// An object that is not published yet, and therefore cannot be read.
struct Unpublished;

impl ReadFile for Unpublished {
    fn len(&self) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read_at(&self, _offset: u64, _buffer: &mut [u8]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "an object cannot be read before it is published"))
    }
}

// ------------------------------------------------------------------------------------------- writing

/// An object that is being made.
struct ObjectUpload {
    kind: TierId,
    path: PathBuf,
    shared: Arc<Shared>,
}

/// What the writers of the object and the parts on their way share.
struct Shared {
    client: Arc<Client>,
    key: Key,
    word: String,
    state: Lock<Parts>,
    changed: Condition,
}

struct Parts {
    part_bytes: u64,
    length: u64,
    /// Parts that are not full yet, and how much of each is written.
    open: BTreeMap<u64, (Vec<u8>, u64)>,
    /// The id of the upload, once there is more than one part.
    id: Option<String>,
    sent: BTreeMap<u64, Option<PartId>>,
    in_flight: usize,
    failure: Option<(io::ErrorKind, String)>,
}

impl Shared {
    fn new(client: &Arc<Client>, key: Key, word: String) -> Shared {
        let state = Parts {
            part_bytes: PART_MIN,
            length: 0,
            open: BTreeMap::new(),
            id: None,
            sent: BTreeMap::new(),
            in_flight: 0,
            failure: None,
        };
        Shared { client: client.clone(), key, word, state: Lock::at(Order::Outer, state), changed: Condition::new() }
    }

    fn write_at(self: &Arc<Self>, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut parts = locked(&self.state);
            let (number, within) = (offset / parts.part_bytes, offset % parts.part_bytes);
            let size = parts.part_bytes as usize;
            let (now, later) = bytes.split_at(bytes.len().min(size - within as usize));
            parts.length = parts.length.max(offset + now.len() as u64);
            let (part, filled) = parts.open.entry(number).or_insert_with(|| (vec![0; size], 0));
            part[within as usize..][..now.len()].copy_from_slice(now);
            *filled += now.len() as u64;
            if *filled >= size as u64
                && let Some((part, _)) = parts.open.remove(&number)
            {
                drop(parts);
                self.send(number, part)?;
            }
            (offset, bytes) = (offset + now.len() as u64, later);
        }
        Ok(())
    }

    /// Sends a part. Waits while the maximum number of parts is on the way.
    fn send(self: &Arc<Self>, number: u64, part: Vec<u8>) -> io::Result<()> {
        let handle = self.client.handle()?;
        let mut parts = locked(&self.state);
        while parts.in_flight >= IN_FLIGHT && parts.failure.is_none() {
            parts = self.changed.wait(parts);
        }
        parts.check()?;
        if parts.id.is_none() {
            parts.id = Some(self.begin()?);
        }
        let id = parts.id.clone().unwrap_or_default();
        parts.sent.insert(number, None);
        parts.in_flight += 1;
        drop(parts);
        let own = self.clone();
        handle.spawn(async move {
            let put = own.client.store.put_part(&own.key, &id, number as usize, Bytes::from(part).into()).await;
            let mut parts = locked(&own.state);
            parts.in_flight -= 1;
            match put {
                Ok(done) => _ = parts.sent.insert(number, Some(done)),
                Err(error) => {
                    let error = io_error(error);
                    parts.failure.get_or_insert((error.kind(), error.to_string()));
                }
            }
            own.changed.notify_all();
        });
        Ok(())
    }

    fn begin(&self) -> io::Result<String> {
        let (key, options) =
            (self.key.clone(), PutMultipartOptions { attributes: named(&self.word), ..Default::default() });
        self.client.call(|store| {
            Box::pin(async move {
                match store.create_multipart_opts(&key, options).await {
                    // Azure's uploads accept no words.
                    Err(Error::NotSupported { .. } | Error::NotImplemented { .. }) => {
                        store.create_multipart(&key).await
                    }
                    other => other,
                }
            })
        })
    }

    /// If the object has parts, sends all that are missing, and waits until all have arrived.
    fn finish_parts(self: &Arc<Self>) -> io::Result<()> {
        let (missing, part_bytes, length) = {
            let mut parts = locked(&self.state);
            parts.check()?;
            if parts.id.is_none() && parts.length <= parts.part_bytes {
                return Ok(());
            }
            let count = parts.length.div_ceil(parts.part_bytes);
            let mut open = std::mem::take(&mut parts.open);
            let missing = (0..count).filter(|number| !parts.sent.contains_key(number));
            let missing: Vec<_> = missing.map(|number| (number, open.remove(&number).map(|(part, _)| part))).collect();
            (missing, parts.part_bytes, parts.length)
        };
        for (number, part) in missing {
            let size = part_bytes.min(length - number * part_bytes) as usize;
            let mut part = part.unwrap_or_else(|| vec![0; size]);
            part.truncate(size);
            self.send(number, part)?;
        }
        let parts = locked(&self.state);
        let parts = self.changed.wait_while(parts, |parts| parts.in_flight > 0);
        parts.check()
    }

    fn publish(self: &Arc<Self>) -> io::Result<()> {
        self.finish_parts()?;
        let mut parts = locked(&self.state);
        let Some(id) = parts.id.clone() else {
            let length = parts.length as usize;
            let mut whole = parts.open.remove(&0).map_or_else(Vec::new, |(part, _)| part);
            whole.resize(length, 0);
            drop(parts);
            let (key, options) =
                (self.key.clone(), PutOptions { attributes: named(&self.word), ..PutOptions::default() });
            let put = |store: Arc<dyn Store>| -> BoxFuture<'static, _> {
                Box::pin(async move { store.put_opts(&key, Bytes::from(whole).into(), options).await })
            };
            return self.client.call(put).map(drop);
        };
        let ids = std::mem::take(&mut parts.sent).into_values().collect::<Option<Vec<_>>>();
        drop(parts);
        let ids = ids.ok_or_else(|| io::Error::other("a part is missing"))?;
        let key = self.key.clone();
        let done = self.client.call(|store| Box::pin(async move { store.complete_multipart(&key, &id, ids).await }));
        // The answer may have been lost, and the repeated request refused.
        let is_ours = || self.client.word_of(&self.key).is_ok_and(|found| found.as_deref() == Some(&*self.word));
        if let Err(error) = done
            && !is_ours()
        {
            return Err(error);
        }
        locked(&self.state).id = None;
        Ok(())
    }

    /// Makes the store discard what it has of the upload, without waiting for that.
    fn abort(&self) {
        let mut parts = locked(&self.state);
        parts.open.clear();
        parts.failure.get_or_insert((io::ErrorKind::Other, "the upload was given up".into()));
        self.changed.notify_all();
        let (Some(id), Ok(handle)) = (parts.id.take(), self.client.handle()) else { return };
        let (client, key) = (self.client.clone(), self.key.clone());
        handle.spawn(async move {
            if let Err(error) = client.store.abort_multipart(&key, &id).await {
                log::debug!("event=parts-left key={key} error={error}");
            }
        });
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.abort();
    }
}

impl Parts {
    fn check(&self) -> io::Result<()> {
        match &self.failure {
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
            None => Ok(()),
        }
    }
}

impl ObjectUpload {
    fn io<T>(&self, action: &'static str, result: io::Result<T>) -> Result<T, TierError> {
        result.map_err(|source| TierError::io(self.kind, action, &self.path, source))
    }
}

impl Upload for ObjectUpload {
    fn kind(&self) -> TierId {
        self.kind
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn reserve(&self, length: u64) -> Result<(), TierError> {
        let mut parts = locked(&self.shared.state);
        if parts.length == 0 {
            parts.part_bytes = PART_MIN.max(length.div_ceil(PARTS_MAX).next_multiple_of(1 << 20));
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), TierError> {
        self.io("write", self.shared.write_at(offset, bytes))
    }

    fn sync(&self) -> Result<(), TierError> {
        self.io("write", self.shared.finish_parts())
    }

    fn publish(&self) -> Result<(), TierError> {
        self.io("publish", self.shared.publish())
    }

    fn discard(&self) {
        self.shared.abort();
    }

    fn read_back(&self) -> io::Result<Box<dyn ReadFile>> {
        Ok(Box::new(Unpublished))
    }
}
