use super::places::{Address, listen};
use super::wire::{CHALLENGE_BYTES, Group, HELLO_BYTES, Hello, Side};
use super::*;
use crate::base::limit::LIMIT;
use crate::base::rng::Rng;
use crate::comm::SharedBytes;
use crate::comm::threads::{ThreadComm, world};
use rustix::net::Shutdown;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;

fn name() -> [u8; 16] {
    let mut name = [0; 16];
    link::random(&mut name);
    name
}

/// What each rank gets when ranks on these nodes open streams, after `change` has altered where they listen.
fn opened(nodes: &[u32], change: impl Fn(u32, &mut Ears) + Sync) -> Vec<Opened> {
    let open = |mut base: ThreadComm| {
        let mut ears = listen(name()).expect("it can listen");
        change(base.rank().0, &mut ears);
        SocketComm::open_with(&mut base, Wish::Need, LIMIT, Ok(ears)).expect("the world is whole")
    };
    std::thread::scope(|scope| {
        let open = &open;
        let ranks: Vec<_> = world(nodes).into_iter().map(|base| scope.spawn(move || open(base))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

fn streams(opened: Opened) -> SocketComm {
    match opened {
        Opened::Streams(streams) => *streams,
        Opened::NotWanted => panic!("they are needed"),
        Opened::Unreachable(why) => panic!("{why}"),
    }
}

fn pair(nodes: [u32; 2]) -> (SocketComm, SocketComm) {
    let mut both = opened(&nodes, |_, _| ()).into_iter().map(streams);
    let mut next = || both.next().expect("two ranks");
    (next(), next())
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < LIMIT, "in vain: {what}");
        std::thread::yield_now();
    }
}

/// Connections break at random moments, at either end, and in the middle of frames and of greetings.
#[test]
fn nothing_is_lost_doubled_or_exchanged_when_connections_break() {
    const MESSAGES: u64 = 400;
    const CUTS: u64 = 20;
    for (seed, nodes) in [(1, [0, 0]), (2, [0, 1]), (3, [0, 1])] {
        let (mut a, mut b) = pair(nodes);
        let mut rng = Rng::new(seed);
        let body: SharedBytes = Arc::new((0..300_000u32).map(|at| at as u8).collect::<Vec<u8>>());
        let (mut sent, mut heard, mut taken, mut cuts) = (0, 0, 0, 0);
        until("all arrives", || {
            // The number of messages under way when a connection is cut depends on the machine. On a fast one, more
            // messages are sent before there have been enough cuts.
            if sent < MESSAGES || cuts < CUTS {
                let bytes = [&sent.to_le_bytes()[..], &vec![7; rng.below(20_000) as usize]].concat();
                a.send(Rank(1), &bytes).expect("open");
                let length = rng.below(300_000) as usize;
                a.send_parcel(Rank(1), [sent; 6], Slice::new(body.clone(), 0..length).expect("inside")).expect("open");
                sent += 1;
            }
            a.receive().expect("open");
            if rng.chance(1, 20) && cuts < 200 {
                let links: Vec<&OwnedFd> = a.links.values().filter_map(Link::socket).collect();
                let inlets: Vec<&OwnedFd> = b.inlets.values().map(|inlet| &inlet.socket).collect();
                for socket in links.into_iter().chain(inlets).filter(|_| rng.chance(1, 2)) {
                    cuts += 1;
                    let _ = rustix::net::shutdown(socket, Shutdown::Both);
                }
            }
            while let Some((_, bytes)) = b.receive().expect("open") {
                assert_eq!(bytes.first_chunk().map(|number| u64::from_le_bytes(*number)), Some(heard));
                assert!(bytes[8..].iter().all(|byte| *byte == 7));
                heard += 1;
            }
            while let Some(parcel) = b.receive_parcel().expect("open") {
                assert_eq!(parcel.label, [taken; 6]);
                assert!(parcel.bytes == (*body).as_ref()[..parcel.bytes.len()]);
                taken += 1;
                b.recycle(parcel.bytes);
            }
            heard == sent
                && taken == sent
                && sent >= MESSAGES
                && cuts >= CUTS
                && a.unfinished() + a.unsent_parcels() == 0
        });
        assert_eq!(Arc::strong_count(&body), 1);
    }
}

/// Messages and parcels for a rank that has ended vanish, including those that wait, and lent memory is given back.
#[test]
fn what_is_for_a_rank_that_has_ended_vanishes() {
    for nodes in [[0, 0], [0, 1]] {
        let (mut a, b) = pair(nodes);
        let body: SharedBytes = Arc::new(vec![1; 1000]);
        for _ in 0..100 {
            a.send_parcel(Rank(1), [0; 6], Slice::new(body.clone(), 0..1000).expect("inside")).expect("open");
        }
        drop(b);
        a.send(Rank(1), b"?").expect("open");
        until("it is noticed", || {
            a.receive().expect("open");
            a.unfinished() + a.unsent_parcels() == 0
        });
        assert_eq!(Arc::strong_count(&body), 1);
        a.send(Rank(1), b"?").expect("open");
        assert_eq!((a.unfinished(), a.quiesce(Duration::from_millis(10))), (0, Ok(false)));
    }
}

/// Addresses at which nobody answers, or a process that is not a rank, come before the right one. Examples are addresses of
/// containers, which are the same on all hosts.
#[test]
fn addresses_that_lead_nowhere_or_elsewhere_are_passed_over() {
    // This listener accepts a call, but does not know the secret.
    let nonsense = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let all = opened(&[0, 1], |_, ears| {
        let right = ears.card.addresses.clone();
        // This address is from the networks reserved for documentation, so nobody answers there.
        ears.card.addresses = vec![IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))];
        ears.card.addresses.extend(right);
    });
    let mut all: Vec<SocketComm> = all.into_iter().map(streams).collect();
    let at = nonsense.local_addr().expect("bound");
    let right = all[0].cards[1].addresses(false, &all[0].networks);
    let addresses = [vec![Address::Ip(at)], right].concat();
    all[0].links.insert((Rank(1), Kind::Messages), Link::new(Rank(1), Kind::Messages, addresses, None));
    // The new stream counts from 0, as the first one did.
    all[1].sources.clear();
    all[0].send(Rank(1), b"there").expect("open");
    let (mut stranger, _) = nonsense.accept().expect("it was called");
    until("it calls elsewhere", || {
        all[0].receive().expect("open");
        let _ = stranger.write_all(&[9; CHALLENGE_BYTES]);
        all[1].receive().expect("open").is_some_and(|(from, bytes)| from == Rank(0) && bytes == b"there")
    });
}

#[test]
fn without_a_way_to_other_nodes_all_ranks_hear_why() {
    let opened = opened(&[0, 0, 1], |rank, ears| {
        if rank == 2 {
            ears.card.port = 0;
        }
    });
    for opened in opened {
        let Opened::Unreachable(why) = opened else { panic!("rank 2 cannot be called") };
        assert_eq!(why, "rank 0 cannot reach rank 2: that rank has no address");
    }
}

#[test]
fn streams_are_made_where_a_rank_needs_them_and_none_refuses() {
    use Wish::{Need, Refuse, Whatever};
    for (wishes, are_made) in [
        ([Need, Whatever, Whatever], true),
        ([Whatever, Whatever, Need], true),
        ([Whatever, Whatever, Whatever], false),
        ([Need, Need, Refuse], false),
        ([Refuse, Refuse, Refuse], false),
    ] {
        std::thread::scope(|scope| {
            for (mut base, wish) in world(&[0, 0, 1]).into_iter().zip(wishes) {
                scope.spawn(move || {
                    let opened = SocketComm::open(&mut base, wish, LIMIT).expect("the world is whole");
                    match opened {
                        Opened::Streams(_) => assert!(are_made, "{wishes:?}"),
                        Opened::NotWanted => assert!(!are_made, "{wishes:?}"),
                        Opened::Unreachable(why) => panic!("{wishes:?}: {why}"),
                    }
                    // Messages that ranks send over `base` as soon as they know the result must reach the application,
                    // and not the exchange.
                    let rank = base.rank().0;
                    (0..3).for_each(|to| base.send(Rank(to), &[7, rank as u8]).expect("open"));
                    let mut heard = Vec::new();
                    until("all have said it", || {
                        heard.extend(base.receive().expect("open").map(|(from, bytes)| (from.0, bytes)));
                        heard.len() == 3
                    });
                    heard.sort();
                    assert_eq!(heard, [0, 1, 2].map(|from| (from, vec![7, from as u8])));
                });
            }
        });
    }
}

/// Other processes of the network call: silent ones, some that talk nonsense, ranks of another group, one that has seen
/// a greeting.
#[test]
fn strangers_are_turned_away_and_hold_up_nobody() {
    let (mut a, mut b) = pair([0, 1]);
    let at = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), b.cards[1].port);
    let call = || TcpStream::connect(at).expect("it listens");
    let silent: Vec<TcpStream> = (0..20).map(|_| call()).collect();
    let mut noisy = call();
    noisy.write_all(&[0xff; 5000]).expect("sent");
    // A hello of the right group, but without the secret: the challenge does not help the liar to answer it.
    let hello = Hello { from: Rank(0), to: Rank(1), kind: Kind::Messages, nonce: [1; 16] };
    let without = Group { secret: [0; 32], ..b.own.group };
    let mut liar = call();
    liar.write_all(&hello.encode(&without)).expect("sent");
    let mut challenge = [0; CHALLENGE_BYTES];
    liar.set_nonblocking(true).expect("a socket");
    let mut got = 0;
    until("it is challenged", || {
        b.receive().expect("open");
        got += liar.read(&mut challenge[got..]).unwrap_or(0);
        got == CHALLENGE_BYTES
    });
    let nonce: [u8; 16] = challenge[..16].try_into().expect("sixteen");
    let mut proofs = [hello.proof(&without, Side::Caller, &nonce).as_bytes().to_vec(), challenge[16..].to_vec()];
    proofs[0].extend([0; HELLO_BYTES]);
    liar.write_all(&proofs.concat()).expect("sent");
    let before = b.sources.len();
    for round in 0..50u8 {
        a.send(Rank(1), &[round]).expect("open");
        until("it arrives", || {
            a.receive().expect("open");
            b.receive().expect("open").is_some_and(|heard| heard == (Rank(0), vec![round]))
        });
    }
    assert_eq!(b.sources.len(), before, "nobody else is known");
    until("the liar and the noisy one are cut off", || {
        b.receive().expect("open");
        b.inlets.values().filter(|inlet| inlet.of().is_none()).count() == silent.len()
    });
    drop(silent);
}

#[test]
fn who_listens_is_woken_by_messages_also_by_those_that_came_with_a_look_for_parcels() {
    let (mut a, mut b) = pair([0, 1]);
    let bell = b.bell().expect("sockets have one");
    let started = Instant::now();
    // The greeting of the stream also rings.
    let listen = || {
        bell.listen(2 * LIMIT, || false);
        assert!(started.elapsed() < LIMIT, "it was slept over");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            a.send(Rank(1), b"first").expect("sent");
            until("it has left", || {
                a.receive().expect("alive");
                a.unfinished() == 0
            });
        });
        while b.receive().expect("alive").is_none() {
            listen();
        }
        // The other rank waits for the acknowledgement of the message.
        b.receive().expect("alive");
    });
    a.send(Rank(1), b"second").expect("sent");
    until("it is here", || {
        a.receive().expect("alive");
        assert!(b.receive_parcel().expect("alive").is_none());
        !b.inbox.is_empty()
    });
    listen();
    assert_eq!(b.receive().expect("alive"), Some((Rank(0), b"second".to_vec())));
}
