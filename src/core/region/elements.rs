//! Small arrays as values, which C, Fortran, Python and Rust programs can exchange.

use super::{Element, RegionError};
use crate::format::ElementType;
use serde::{Deserialize, Serialize};

/// A small array as a value. C, Fortran and Python programs save such arrays where a Rust program saves values of any
/// type, both for values that all ranks share and for values that belong to one rank. A Rust program can read the values of
/// these programs, and can write values that they can read.
///
/// ```no_run
/// # fn f(session: &bivouac::Session, step: u64) -> bivouac::Result<()> {
/// use bivouac::Elements;
///
/// let mut ckpt = session.begin_checkpoint("heat", step)?;
/// ckpt.shared("step", &Elements::of(&[step]))?; // C loads it with bvk_load_shared
/// ckpt.capture()?;
/// session.begin_restore("heat").run(|r| {
///     let step = r.shared::<Elements>("step")?.to_vec::<u64>("step")?;
/// #   drop(step);
///     Ok(())
/// })?;
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Elements {
    element: ElementType,
    bytes: Vec<u8>,
}

impl Elements {
    /// A value with the elements of a slice.
    pub fn of<T: Element>(elements: &[T]) -> Elements {
        Elements { element: T::TYPE, bytes: bytemuck::cast_slice(elements).to_vec() }
    }

    /// A value with elements of a type that is known only at run time.
    #[doc(hidden)]
    pub fn typed(element: ElementType, bytes: &[u8]) -> Elements {
        Elements { element, bytes: bytes.to_vec() }
    }

    /// The element type.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// The bytes of the elements, one element after the other.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The number of elements.
    pub fn count(&self) -> u64 {
        self.bytes.len() as u64 / self.element.bytes().max(1)
    }

    /// The elements of a value that was loaded under `name`.
    ///
    /// # Errors
    /// [`RegionError::Elements`] if they are of another type.
    pub fn to_vec<T: Element>(&self, name: &str) -> Result<Vec<T>, RegionError> {
        let size = size_of::<T>();
        if self.element != T::TYPE || size == 0 || !self.bytes.len().is_multiple_of(size) {
            let (found, expected) = (self.element, T::TYPE);
            return Err(RegionError::Elements { name: name.into(), bytes: self.bytes.len(), found, expected });
        }
        Ok(bytemuck::pod_collect_to_vec(&self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RegionData, decode_value, value};
    use super::*;

    #[test]
    fn elements_go_through_a_value_and_no_other_value_is_taken_for_them() {
        let three = Elements::of(&[1.5f64, -2.0, 3.0]);
        assert_eq!((three.element(), three.count()), (ElementType::F64, 3));
        let saved = value("t", &three).expect("a value");
        let RegionData::Host(bytes) = &saved.data else { panic!("a value is in host memory") };
        // The type, the length in bytes, and then the elements.
        let head = [9, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!((&bytes[..12], bytes.len()), (&head[..], 12 + 24));
        let read: Elements = decode_value("t", bytes).expect("elements");
        assert_eq!(read.to_vec::<f64>("t"), Ok(vec![1.5, -2.0, 3.0]));
        let error = read.to_vec::<u64>("t").expect_err("another type").to_string();
        assert_eq!(error, "value \"t\" has 24 bytes of elements of type f64, but type u64 was requested");
        for other in [value("t", &7u64), value("t", &String::from("0123456789")), value("t", &vec![1u64, 2])] {
            let other = other.expect("a value");
            let RegionData::Host(bytes) = &other.data else { panic!("a value is in host memory") };
            assert!(decode_value::<Elements>("t", bytes).is_err());
        }
    }
}
