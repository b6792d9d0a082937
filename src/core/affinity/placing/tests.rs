//! Tests that need no second node: which page is wanted where, how the work is cut, and that nothing but the target changes.
//! `tests/numa.rs` places pages on machines with several nodes.

use super::*;

fn place_at(start: usize, bytes: u64) -> Place {
    Place { start, bytes }
}

/// Zeros in pages without memory. A smaller piece might come from memory that was touched and given back to the allocator:
/// from 32 MiB, glibc asks the system each time.
fn untouched() -> Vec<u8> {
    vec![0; 33 << 20]
}

fn piece(pages: Range<u64>, node: u32) -> Piece {
    Piece { pages, node }
}

#[test]
fn a_page_is_wanted_where_its_first_byte_is() {
    let at = |wanted: &[Wanted]| pieces(place_at(0x10_0000 + 100, 10 * 4096), wanted);
    assert_eq!(at(&[(0..40_960, Some(1))]), [piece(0..11, 1)]);
    let border = 4096 * 3 - 100;
    assert_eq!(at(&[(0..border, Some(0)), (border..40_960, Some(1))]), [piece(0..3, 0), piece(3..11, 1)]);
    let inside = [(0..border + 1, Some(0)), (border + 1..40_960, Some(1))];
    assert_eq!(at(&inside), [piece(0..4, 0), piece(4..11, 1)], "the page begins in the first range");
    let hole = [(0..border, Some(0)), (border..border + 4096, None), (border + 4096..40_960, Some(0))];
    assert_eq!(at(&hole), [piece(0..3, 0), piece(4..11, 0)]);
    assert_eq!(at(&[(0..border, Some(2)), (border..40_960, Some(2))]), [piece(0..11, 2)]);
}

#[test]
fn ranges_that_make_no_sense_do_no_harm() {
    let at = |wanted: &[Wanted]| pieces(place_at(0x10_0000, 10 * 4096), wanted);
    #[allow(clippy::reversed_empty_ranges)]
    let backward = 9000..100;
    assert_eq!(at(&[(backward, Some(0)), (5..5, Some(1)), (u64::MAX - 1..u64::MAX, Some(2))]), []);
    assert_eq!(at(&[(4096..u64::MAX, Some(0)), (0..8192, Some(1))]), [piece(0..2, 1), piece(2..10, 0)]);
    assert_eq!(pieces(place_at(0x10_0000, 0), &[(0..9, Some(0))]), []);
}

#[test]
fn pages_that_are_shared_are_not_whole() {
    assert_eq!(place_at(4096, 8192).whole_pages(), 0..2);
    assert_eq!(place_at(4096 + 1, 8192).whole_pages(), 1..2);
    assert_eq!(place_at(4096, 50).whole_pages(), 0..0);
    assert_eq!(place_at(4096 + 50, 50).whole_pages(), 1..1);
    assert_eq!((place_at(4096 + 50, 50).pages(), place_at(8191, 2).pages(), place_at(8191, 1).pages()), (1, 2, 1));
}

#[test]
fn shares_are_the_pieces_each_byte_once() {
    // After the first 12 MiB, there are two whole parts wherever the memory begins: up to 64 MiB to the border of
    // a part, and twice 64 MiB.
    let mut bytes = vec![0u8; 208 << 20];
    let target = &mut bytes[100..];
    let place = Place::of(target);
    let pages = place.pages();
    let pieces = [piece(0..700, 0), piece(700..701, 1), piece(710..3000, 2), piece(3000..pages, 0)];
    let shared = blocks::shared_by(&[place.block(700), place.block(3000)]);
    let shares = shares(target, place, &pieces, &shared);
    let mut all: Vec<(u64, u64, u32, bool)> = Vec::new();
    for (node, shares) in shares {
        for share in shares {
            assert_eq!(share.bytes.as_ptr() as usize, place.start + place.bytes_of(&(share.first..pages)).start);
            assert!(share.place.pages() <= PART_PAGES);
            share.bytes.fill(node as u8 + 1);
            all.push((share.first, share.place.pages(), node, share.is_shared));
        }
    }
    all.sort_unstable();
    assert!(all.iter().filter(|share| share.1 == PART_PAGES).count() >= 2, "migrations are large");
    for piece in &pieces {
        let own = all.iter().filter(|share| piece.pages.contains(&share.0));
        assert_eq!(own.map(|share| share.1).sum::<u64>(), piece.pages.end - piece.pages.start);
    }
    for (first, count, _, is_shared) in &all {
        assert!((*first..first + count).all(|page| shared.contains(place.block(page)) == *is_shared));
    }
    let at = |page: u64| bytes[100..][place.bytes_of(&(page..pages)).start];
    assert_eq!([0, 699, 700, 701, 710, 2999, 3000, pages - 1].map(at), [1, 1, 2, 0, 3, 3, 1, 1]);
    assert_eq!(bytes[..100], [0; 100]);
}

#[test]
fn untouched_memory_gets_its_pages_and_touched_memory_keeps_its_bytes() {
    if numa::query(&[0]).is_err() {
        return eprintln!("SKIPPED: this machine does not say where pages lie");
    }
    let mut all = untouched();
    let bytes = &mut all[..16 << 20];
    // Huge pages would populate more than is touched.
    numa::forbid_huge(bytes).expect("allowed");
    let middle = 7 << 20;
    bytes[..middle].fill(5);
    let last = bytes.len() - 1;
    let target = &mut bytes[4097..last];
    let length = target.len() as u64;
    let before = verify(target, &[(0..length, Some(0))]);
    assert!(before.right < before.wanted && before.wrong[&Reason::Absent] > 0, "{before}");
    let report = place(target, &[(0..length / 2, Some(0)), (length / 2..length, Some(0))], &BTreeMap::new());
    assert_eq!((report.wanted, report.right, report.dropped), (before.wanted, before.wanted, 0), "{report}");
    assert!(report.wanted >= 4095, "{report}");
    assert!(report.populated >= 9 << 8, "{report:?}");
    assert!(bytes[..middle].iter().all(|byte| *byte == 5) && bytes[middle..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_node_that_is_not_there_is_said_and_nothing_is_lost() {
    let mut bytes = vec![7u8; 8 << 20];
    let length = bytes.len() as u64;
    for node in [999, u32::MAX] {
        let report = place(&mut bytes, &[(0..length, Some(node))], &BTreeMap::from([(node, Cpus::from([9999]))]));
        assert_eq!((report.right, report.wrong_pages()), (0, report.wanted), "{report}");
        assert!(report.wanted > 0);
    }
    assert!(bytes.iter().all(|byte| *byte == 7));
    let mut fresh = untouched();
    let report = place(&mut fresh[..8 << 20], &[(0..length, Some(999))], &BTreeMap::new());
    let expected = if numa::query(&[0]).is_ok() { Reason::NoNode } else { Reason::Forbidden };
    assert_eq!(report.wrong, BTreeMap::from([(expected, report.wanted)]), "{report}");
    if numa::policy().is_ok() {
        assert_eq!(missed(999), Reason::NoNode, "no thread can prefer it");
    }
}

#[test]
fn the_caller_keeps_its_own_signals() {
    use nix::sys::signal::SigSet;
    let mut own = SigSet::thread_get_mask().expect("a mask");
    own.add(nix::sys::signal::SIGUSR2);
    own.thread_set_mask().expect("set");
    let mut bytes = vec![0u8; 8 << 20];
    place(&mut bytes, &[(0..8 << 20, Some(0))], &BTreeMap::new());
    assert_eq!(SigSet::thread_get_mask().expect("a mask"), own);
}

/// Are huge pages forbidden at this address?
fn is_forbidden(address: usize) -> bool {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut is_here = false;
    for line in text.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        if let Some((start, end)) = range.and_then(|(start, end)| Some((number(start)?, number(end)?))) {
            is_here = (start..end).contains(&address);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_here) {
            return flags.split_whitespace().any(|flag| flag == "nh");
        }
    }
    false
}

#[test]
fn huge_pages_are_forbidden_for_blocks_that_are_worth_it() {
    let block = (BLOCK_PAGES * PAGE_BYTES) as usize;
    let mut bytes = vec![0u8; 16 * block];
    let from = bytes.as_ptr().align_offset(block);
    let bytes = &mut bytes[from..];
    let mut put = |from: usize, length: usize, wanted: &[Wanted]| {
        place(&mut bytes[from..from + length], wanted, &BTreeMap::new());
        is_forbidden(bytes[from..].as_ptr() as usize)
    };
    if !put(9 * block + 4096, 2 * block, &[(0..2 * block as u64, Some(0))]) {
        return eprintln!("SKIPPED: this machine does not tell of pages, or not of huge ones");
    }
    assert!(!put(block + 4096, block / 2, &[(0..block as u64 / 2, Some(0))]), "small, and all on one node");
    assert!(put(5 * block + 4096, 8192, &[(0..4096, Some(0)), (4096..8192, Some(1))]), "small, and on two nodes");
}

#[test]
fn all_pages_must_be_right_for_nothing_to_be_done() {
    let pieces = [piece(10..12, 1), piece(12..13, 0), piece(15..16, 2)];
    assert!(are_right(&pieces, &[1, 1, 0, -2, 7, 2]));
    for (at, status) in [(0, 0), (1, -2), (2, 1), (5, -14)] {
        let mut found = [1, 1, 0, -2, 7, 2];
        found[at] = status;
        assert!(!are_right(&pieces, &found));
    }
    assert!(!are_right(&pieces, &[1, 1, 0, -2, 7]), "a page that was not asked for");
}

#[test]
fn large_memory_that_is_right_is_asked_for_in_part_and_a_hole_in_it_is_found() {
    if numa::query(&[0]).is_err() {
        return eprintln!("SKIPPED: this machine does not say where pages lie");
    }
    let block = (BLOCK_PAGES * PAGE_BYTES) as usize;
    let mut bytes = vec![1u8; 32 * block];
    let from = bytes.as_ptr().align_offset(block);
    let bytes = &mut bytes[from..from + 24 * block];
    let wanted = [(0..bytes.len() as u64, Some(0))];
    if verify(bytes, &wanted).wrong_pages() > 0 {
        return eprintln!("SKIPPED: this memory is not on node 0");
    }
    let pages = 24 * BLOCK_PAGES;
    let report = place(bytes, &wanted, &BTreeMap::new());
    assert_eq!((report.wanted, report.right, report.populated), (pages, pages, 0), "{report:?}");
    assert!(report.assumed > pages / 2 && report.assumed < pages, "{report:?}");
    // A hole as large as the gaps between the pages that are queried.
    let gap = SAMPLE_STEPS[0].1;
    let hole = 5 * block..5 * block + gap * PAGE_BYTES as usize;
    // An existing huge page would be as large as the hole's block.
    numa::forbid_huge(bytes).expect("allowed");
    numa::discard(&mut bytes[hole]).expect("own memory");
    let report = place(bytes, &wanted, &BTreeMap::new());
    assert_eq!((report.wanted, report.right, report.populated), (pages, pages, gap as u64), "{report:?}");
    assert_eq!(verify(bytes, &wanted), PlaceReport::all_right(pages));
}

#[test]
fn small_memory_is_placed_by_the_calling_thread_which_keeps_its_policy() {
    if numa::query(&[0]).is_err() {
        return eprintln!("SKIPPED: this machine does not say where pages lie");
    }
    let before = numa::policy().ok();
    // So large that its pages are untouched.
    let mut bytes = vec![0u8; 64 << 20];
    let bytes = &mut bytes[(8 << 20) + 100..(9 << 20) - 4096];
    let wanted = [(0..bytes.len() as u64, Some(0))];
    let report = place(bytes, &wanted, &BTreeMap::new());
    assert!(report.right == report.wanted && report.populated > 200, "{report:?}");
    let again = place(bytes, &wanted, &BTreeMap::new());
    assert_eq!(again, PlaceReport::all_right(report.wanted));
    assert_eq!(numa::policy().ok(), before);
}
