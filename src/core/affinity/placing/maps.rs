//! Which addresses of this process belong to private anonymous memory: `/proc/self/maps`.
#![forbid(unsafe_code)]

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::ops::Range;

/// Mapped addresses, by where they end; and whether they are private and anonymous.
type Mappings = BTreeMap<usize, (usize, bool)>;

/// The mappings of a process. They are read only when they are first needed, because a process may have thousands.
pub(super) struct Maps(LazyCell<Mappings>);

fn read() -> Mappings {
    let text = std::fs::read("/proc/self/maps").unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter_map(parse).collect()
}

/// A line such as `7f0a00000000-7f0a00200000 rw-p 00000000 00:00 0`.
fn parse(line: &str) -> Option<(usize, (usize, bool))> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?;
    let inode = fields.nth(2)?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(end)?, (number(start)?, rights.ends_with('p') && inode == "0")))
}

impl Maps {
    /// The maps of this process; none if `/proc` is hidden, so that nothing is mistaken for anonymous memory.
    pub(super) fn of_this_process() -> Maps {
        Maps(LazyCell::new(read))
    }

    /// Nothing is known.
    #[cfg(test)]
    pub(super) fn none() -> Maps {
        Maps(LazyCell::new(Mappings::new))
    }

    fn at(&self, address: usize) -> Option<(usize, usize, bool)> {
        let (end, (start, is_anonymous)) = self.0.range(address + 1..).next()?;
        (*start <= address).then_some((*start, *end, *is_anonymous))
    }

    /// Does this address belong to memory that is this process's alone and not a file's?
    pub(super) fn is_private_anonymous(&self, address: usize) -> bool {
        self.at(address).is_some_and(|(_, _, is_anonymous)| is_anonymous)
    }

    /// Do all these addresses belong to one mapping? Only then can they be one huge page. True if
    /// the mappings are not known.
    pub(super) fn is_one(&self, addresses: Range<usize>) -> bool {
        self.0.is_empty() || self.at(addresses.start).is_some_and(|(_, end, _)| end >= addresses.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_addresses_found() {
        const TEXT: &str = "1000-3000 rw-p 00000000 00:00 0 \n3000-4000 rw-s 00000000 00:01 1029 /dev/zero (deleted)\n\
                    6000-7000 r--p 00000000 fe:00 77 /lib/a b\n8000-9000 rw-p 00000000 00:00 0 [heap]\nrubbish\n";
        let maps = Maps(LazyCell::new(|| TEXT.lines().filter_map(parse).collect()));
        let own: Vec<usize> = (0..10).filter(|i| maps.is_private_anonymous(i * 0x1000 + 0xfff)).collect();
        assert_eq!(own, [1, 2, 8]);
        assert!(maps.is_one(0x1000..0x3000) && !maps.is_one(0x1000..0x3001) && !maps.is_one(0x5000..0x6000));
        assert!(Maps::none().is_one(0..1) && !Maps::none().is_private_anonymous(0x1000));
    }

    #[test]
    fn this_process_has_memory_of_its_own_and_of_files() {
        let maps = Maps::of_this_process();
        let own = vec![0u8; 1 << 20];
        assert!(
            maps.is_private_anonymous(own.as_ptr() as usize)
                || Maps::of_this_process().is_private_anonymous(own.as_ptr() as usize)
        );
        assert!(!maps.is_private_anonymous(this_process_has_memory_of_its_own_and_of_files as *const () as usize));
    }
}
