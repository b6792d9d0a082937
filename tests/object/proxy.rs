//! An HTTP/1.1 proxy between a client and a server on this machine. Each connection carries one request, and faults can be switched on
//! while the proxy runs.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The fault that a request gets.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The proxy answers with this status and text, and the server never sees the request.
    Status(u16, &'static str),
    /// The answer arrives this much later.
    Late(Duration),
    /// Both connections are cut after this many bytes of the request's body.
    CutRequest(u64),
    /// The server does what the request says, and the answer is lost.
    NoAnswer,
    /// The server does what the request says, and the client gets another answer.
    Instead(u16, &'static str),
    /// Both connections are cut after this many bytes of the answer.
    CutAnswer(u64),
    /// The server never sees this line of the request's head.
    WithoutHeader(&'static str),
}

struct Rule {
    method: &'static str,
    /// The text to look for in the head, in lower case.
    part: &'static str,
    pass: usize,
    left: usize,
    fault: Fault,
}

#[derive(Default)]
struct Shared {
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<String>>,
    is_over: AtomicBool,
    /// Lists omit entries with these names.
    hidden: Vec<String>,
}

pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy in front of `server`.
    pub fn before(server: SocketAddr) -> Proxy {
        Proxy::hiding(server, Vec::new())
    }

    /// Starts a proxy whose lists omit entries with these names, as if these had just been created.
    pub fn hiding(server: SocketAddr, hidden: Vec<String>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { hidden, ..Shared::default() });
        let own = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if own.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let own = own.clone();
                std::thread::spawn(move || serve(client, server, &own));
            }
        });
        Proxy { address, shared }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Among the requests with this method and with `part` in their head, the first `pass` pass and the next `times` get the fault.
    pub fn add(&self, method: &'static str, part: &'static str, pass: usize, times: usize, fault: Fault) {
        self.shared.rules.lock().unwrap().push(Rule { method, part, pass, left: times, fault });
    }

    pub fn clear(&self) {
        self.shared.rules.lock().unwrap().clear();
    }

    /// The first lines of the requests so far, each followed by its fault if it got one.
    pub fn seen(&self) -> Vec<String> {
        self.shared.seen.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        _ = TcpStream::connect(self.address);
    }
}

fn serve(client: TcpStream, server: SocketAddr, shared: &Shared) -> io::Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(120)))?;
    let mut reader = BufReader::new(client.try_clone()?);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let small = line.to_ascii_lowercase();
        if small == "\r\n" {
            break;
        }
        if let Some(value) = small.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if !small.starts_with("connection:") {
            head += &line;
        }
    }
    let first = head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1").to_owned();
    let method = first.split(' ').next().unwrap_or_default().to_owned();
    let fault = pick(shared, &method, &head.to_ascii_lowercase());
    shared
        .seen
        .lock()
        .unwrap()
        .push(fault.as_ref().map_or_else(|| first.clone(), |fault| format!("{first} {fault:?}")));
    let mut body = reader.take(length);
    if let Some(Fault::Status(status, text)) = fault {
        io::copy(&mut body, &mut io::sink())?;
        return answer(client, &method, status, text);
    }
    if let Some(Fault::WithoutHeader(name)) = fault {
        let is_it = |line: &&str| line.split(':').next().is_some_and(|of| of.eq_ignore_ascii_case(name));
        head = head.split_inclusive("\r\n").filter(|line| !is_it(line)).collect();
    }
    let mut up = TcpStream::connect(server)?;
    up.write_all(head.as_bytes())?;
    up.write_all(b"connection: close\r\n\r\n")?;
    if let Some(Fault::CutRequest(bytes)) = fault {
        io::copy(&mut body.take(bytes), &mut up)?;
        return Ok(());
    }
    io::copy(&mut body, &mut up)?;
    if first.contains("list-type") && !shared.hidden.is_empty() {
        let mut whole = String::new();
        up.read_to_string(&mut whole)?;
        let (_, text) = whole.split_once("\r\n\r\n").unwrap_or_default();
        // The text may arrive in chunks. The length of a chunk is on its own line.
        let is_length = |line: &&str| line.len() < 9 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
        let text: String = text.split("\r\n").filter(|line| !is_length(line)).collect();
        return answer(client, &method, 200, &without(&text, &shared.hidden));
    }
    match fault {
        Some(Fault::NoAnswer) => {
            io::copy(&mut up, &mut io::sink())?;
            client.shutdown(Shutdown::Both)
        }
        Some(Fault::Instead(status, text)) => {
            io::copy(&mut up, &mut io::sink())?;
            answer(client, &method, status, text)
        }
        Some(Fault::CutAnswer(bytes)) => {
            io::copy(&mut up.take(bytes), &mut &client)?;
            client.shutdown(Shutdown::Both)
        }
        other => {
            if let Some(Fault::Late(by)) = other {
                std::thread::sleep(by);
            }
            io::copy(&mut up, &mut &client)?;
            client.shutdown(Shutdown::Write)
        }
    }
}

/// A list without the entries whose last part is one of these names.
fn without(list: &str, names: &[String]) -> String {
    let mut kept = list.to_owned();
    for tag in ["Contents", "CommonPrefixes"] {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let mut rest = std::mem::take(&mut kept);
        while let Some((before, after)) = rest.split_once(&open) {
            let (entry, behind) = after.split_once(&close).unwrap();
            kept += before;
            if !names.iter().any(|name| entry.contains(&format!("/{name}<")) || entry.contains(&format!("/{name}/<"))) {
                kept += &format!("{open}{entry}{close}");
            }
            rest = behind.to_owned();
        }
        kept += &rest;
    }
    kept
}

fn pick(shared: &Shared, method: &str, head: &str) -> Option<Fault> {
    let mut rules = shared.rules.lock().unwrap();
    let rule = rules
        .iter_mut()
        .find(|rule| rule.left > 0 && (rule.method.is_empty() || rule.method == method) && head.contains(rule.part))?;
    if rule.pass > 0 {
        rule.pass -= 1;
        return None;
    }
    rule.left -= 1;
    Some(rule.fault.clone())
}

fn answer(mut client: TcpStream, method: &str, status: u16, text: &str) -> io::Result<()> {
    let length = text.len();
    write!(
        client,
        "HTTP/1.1 {status} Fault\r\ncontent-type: application/xml\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    )?;
    if method != "HEAD" {
        client.write_all(text.as_bytes())?;
    }
    client.shutdown(Shutdown::Write)
}
