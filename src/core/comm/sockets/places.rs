//! Where a rank listens, and at which addresses it can be reached.
#![forbid(unsafe_code)]

use rustix::net::{self, AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, ipproto, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How many waiting callers the system keeps until they are accepted. The kernel reduces this to its own limit.
const BACKLOG: i32 = 4096;
/// After this time a connection whose other end is silent is cut, and is then made again.
const SILENCE: Duration = Duration::from_secs(20);
/// The maximum number of addresses of a rank: a host may have hundreds, nearly all of them of containers.
const ADDRESSES_MAX: usize = 32;

/// An address at which a rank can be reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Address {
    /// The abstract name of a socket on the same node.
    Node(Vec<u8>),
    Ip(SocketAddr),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Node(_) => f.write_str("a socket on the node"),
            Address::Ip(address) => write!(f, "{address}"),
        }
    }
}

/// All addresses of one rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Card {
    pub(super) name: Vec<u8>,
    /// The TCP port. 0: the rank does not listen to other nodes.
    pub(super) port: u16,
    pub(super) addresses: Vec<IpAddr>,
}

/// A network to which this host belongs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network {
    address: IpAddr,
    mask: u128,
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl Network {
    fn has(&self, other: IpAddr) -> bool {
        self.address.is_ipv4() == other.is_ipv4() && bits(self.address) & self.mask == bits(other) & self.mask
    }
}

impl Card {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.name.len() as u8, self.addresses.len() as u8];
        bytes.extend(&self.name);
        bytes.extend(self.port.to_le_bytes());
        for address in &self.addresses {
            match address {
                IpAddr::V4(address) => bytes.extend([&[4][..], &address.octets()].concat()),
                IpAddr::V6(address) => bytes.extend([&[6][..], &address.octets()].concat()),
            }
        }
        bytes
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Option<Card> {
        let [names, addresses] = *take(&mut bytes)?;
        let (name, rest) = bytes.split_at_checked(names.into())?;
        bytes = rest;
        let port = u16::from_le_bytes(*take(&mut bytes)?);
        let address = |bytes: &mut &[u8]| match take(bytes)? {
            [4] => Some(IpAddr::V4(Ipv4Addr::from(*take::<4>(bytes)?))),
            [6] => Some(IpAddr::V6(Ipv6Addr::from(*take::<16>(bytes)?))),
            _ => None,
        };
        let addresses = (0..addresses).map(|_| address(&mut bytes)).collect::<Option<_>>()?;
        bytes.is_empty().then(|| Card { name: name.to_vec(), port, addresses })
    }

    /// The addresses at which to call the rank, best first: a socket of the same node, then addresses in networks of this host,
    /// then others.
    pub(super) fn addresses(&self, is_on_this_node: bool, own: &[Network]) -> Vec<Address> {
        let name = Some(Address::Node(self.name.clone())).filter(|_| is_on_this_node && !self.name.is_empty());
        let mut addresses = self.addresses.clone();
        addresses.sort_by_key(|address| !own.iter().any(|network| network.has(*address)));
        let port = Some(self.port).filter(|port| *port != 0);
        let of_ip = addresses.into_iter().filter_map(|address| Some(Address::Ip(SocketAddr::new(address, port?))));
        name.into_iter().chain(of_ip).collect()
    }
}

fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(first)
}

/// This host's addresses that other hosts may reach, and the networks of these addresses. Only loopback if the host has no
/// other address.
pub(super) fn own_networks() -> Vec<Network> {
    let all: Vec<Network> =
        nix::ifaddrs::getifaddrs().map(|all| all.filter_map(|one| network(&one)).collect()).unwrap_or_default();
    let (own, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|network| network.address.is_loopback());
    if others.is_empty() { own } else { others }
}

fn network(interface: &nix::ifaddrs::InterfaceAddress) -> Option<Network> {
    let ip = |storage: &nix::sys::socket::SockaddrStorage| {
        let four = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        four.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    let address = ip(interface.address.as_ref()?)?;
    // A link-local address is meaningless to hosts on other links.
    let is_of_link = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    let mask = interface.netmask.as_ref().and_then(ip).map_or(u128::MAX, bits);
    let is_up = interface.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP);
    (is_up && !is_of_link).then_some(Network { address, mask })
}

/// The sockets with which a rank listens, and the addresses that it announces.
pub(super) struct Ears {
    pub(super) sockets: Vec<OwnedFd>,
    pub(super) card: Card,
    pub(super) networks: Vec<Network>,
}

/// Listens for ranks of this node, and for ranks of other nodes.
///
/// # Errors
/// What the system reports. A host without TCP listens only to its own node.
pub(super) fn listen(name: [u8; 16]) -> io::Result<Ears> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let name =
        [b"bivouac-".as_slice(), &name.map(|byte| [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]).concat()]
            .concat();
    let here = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::bind(&here, &SocketAddrUnix::new_abstract_name(&name)?)?;
    net::listen(&here, BACKLOG)?;
    let networks = own_networks();
    let mut ears = Ears { sockets: vec![here], card: Card { name, ..Card::default() }, networks };
    // If the host has IPv6, one socket takes both kinds of addresses.
    let any = [
        (AddressFamily::INET6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        (AddressFamily::INET, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
    ];
    let opened = any.into_iter().find_map(|(family, address)| listen_at(family, address, flags).ok());
    if let Some((socket, port)) = opened {
        ears.sockets.push(socket);
        ears.card.port = port;
        ears.card.addresses = ears.networks.iter().map(|network| network.address).take(ADDRESSES_MAX).collect();
    }
    Ok(ears)
}

const HEX: &[u8; 16] = b"0123456789abcdef";

fn listen_at(family: AddressFamily, address: IpAddr, flags: SocketFlags) -> io::Result<(OwnedFd, u16)> {
    let socket = net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &SocketAddr::new(address, 0))?;
    net::listen(&socket, BACKLOG)?;
    let bound = net::getsockname(&socket)?;
    let bound = SocketAddr::try_from(bound).map_err(|errno| io::Error::from_raw_os_error(errno.raw_os_error()))?;
    Ok((socket, bound.port()))
}

/// Begins to connect. The socket becomes writable when the attempt has succeeded or failed.
pub(super) fn call(address: &Address) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, begun) = match address {
        Address::Node(name) => {
            let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            let begun = net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?);
            (socket, begun)
        }
        Address::Ip(address) => {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
            set_up(&socket);
            let begun = net::connect(&socket, address);
            (socket, begun)
        }
    };
    match begun {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

/// Accepts a caller, if there is one.
pub(super) fn answer(ear: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    match net::accept_with(ear, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => {
            if matches!(
                net::getsockname(&socket).map(|name: SocketAddrAny| name.address_family()),
                Ok(AddressFamily::INET | AddressFamily::INET6)
            ) {
                set_up(&socket);
            }
            Ok(Some(socket))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Sets options on a best-effort basis. Without them, sending is slower, and so is noticing that the other end has
/// vanished silently.
fn set_up(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, SILENCE / 4);
    let _ = sockopt::set_tcp_keepintvl(socket, SILENCE / 4);
    let _ = sockopt::set_tcp_keepcnt(socket, 3);
    let _ = sockopt::set_tcp_user_timeout(socket, SILENCE.as_millis() as u32);
}
