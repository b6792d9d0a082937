//! Object stores for tests, which this project did not write, and a proxy that does to their traffic what networks do.
//!
//! `s3s-fs` keeps objects as files of a folder, checks signatures, and finds all objects again after a restart. `moto` keeps them in
//! memory, checks no signatures, and never lets two clients create the same object. `ci/setup.sh --with-tests` puts both below
//! `target/tools`; without them, tests print a note and pass.
#![allow(dead_code)] // Each test program uses a part of this.

pub mod proxy;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const BUCKET: &str = "bucket";
pub const KEY: &str = "AKIATESTTESTTEST";
pub const SECRET: &str = "this-is-no-secret-it-stands-in-a-test";

/// The environment of every program here that uses an object store. Without keys the client would ask the cloud's own metadata service for
/// some, so the environment gives that service's address as a port where nobody listens.
pub fn environment() -> Vec<(&'static str, String)> {
    vec![
        ("AWS_ACCESS_KEY_ID", KEY.into()),
        ("AWS_SECRET_ACCESS_KEY", SECRET.into()),
        ("AWS_REGION", "us-east-1".into()),
        ("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1".into()),
        ("NO_PROXY", "127.0.0.1".into()),
    ]
}

fn tools() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("tools")
}

/// A server that ends when this value is dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    /// The folder in which s3s-fs keeps its buckets.
    pub root: Option<tempfile::TempDir>,
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn skipped(what: &str) {
    eprintln!(
        "\n*** SKIPPED: {what} is not in target/tools, so nothing was tested against it. Run ci/setup.sh --with-tests. ***\n"
    );
}

impl Server {
    fn start(mut command: Command, address: SocketAddr, root: Option<tempfile::TempDir>) -> Server {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Server { child, address, root };
        let limit = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < limit, "{address} does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// Starts s3s-fs on its own folder with one bucket.
    pub fn s3s_fs() -> Option<Server> {
        let program = tools().join("bin/s3s-fs");
        if !program.exists() {
            skipped("s3s-fs");
            return None;
        }
        let root = tempfile::Builder::new().prefix("bivouac-s3-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::create_dir(root.path().join(BUCKET)).unwrap();
        let address = free_address();
        Some(Server::start(s3s_fs_command(&program, address, root.path()), address, Some(root)))
    }

    /// Starts s3s-fs on a folder. The folders in it are its buckets.
    pub fn s3s_fs_on(folder: &Path) -> Option<Server> {
        let program = tools().join("bin/s3s-fs");
        if !program.exists() {
            skipped("s3s-fs");
            return None;
        }
        let address = free_address();
        Some(Server::start(s3s_fs_command(&program, address, folder), address, None))
    }

    /// The folder of the server's bucket.
    pub fn bucket(&self) -> PathBuf {
        self.root.as_ref().expect("s3s-fs").path().join(BUCKET)
    }

    /// Kills the server, and starts it again after a pause, at the same address.
    pub fn restart(&mut self, pause: Duration) {
        _ = self.child.kill();
        _ = self.child.wait();
        std::thread::sleep(pause);
        let root = self.root.take();
        let command = s3s_fs_command(&tools().join("bin/s3s-fs"), self.address, root.as_ref().unwrap().path());
        *self = Server::start(command, self.address, root);
    }

    /// Starts moto, with one bucket.
    pub fn moto() -> Option<Server> {
        let program = tools().join("moto/bin/moto_server");
        if !program.exists() {
            skipped("moto");
            return None;
        }
        let address = free_address();
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
        let server = Server::start(command, address, None);
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "PUT /{BUCKET} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Some(server)
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn s3s_fs_command(program: &Path, address: SocketAddr, root: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
    command.args(["--access-key", KEY, "--secret-key", SECRET]).arg(root);
    command
}

/// The URL of this prefix in the bucket.
pub fn url(prefix: &str) -> String {
    format!("s3://{BUCKET}/{prefix}")
}
