//! Erasure codes: they compute parity from data, and a lost member from the members that are left. Pure arithmetic over
//! bytes.
//!
//! A set has `k` data members, numbered `0..k`, and `m` parity members, numbered `k..k + m`. Each parity member is a sum of
//! multiples of the data members, byte by byte:
//!
//! ```text
//! parity p = coefficient(p, 0) * data 0 + coefficient(p, 1) * data 1 + … + coefficient(p, k-1) * data k-1
//! ```
//!
//! Since a sum can be built up in any order, no rank needs more than its own member and the unfinished sums: a rank
//! that holds a data member adds its multiple ([`Factor`], [`add_to_all`]), and a rank that rebuilds does the same with
//! the factors that [`Code::recovery`] returns. A member that is shorter than the others counts as if it ended in
//! zeros.
//!
//! # The code, as the file format has it
//!
//! Bytes are elements of the field GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d): addition is exclusive
//! or. Bytes are multiplied as polynomials over {0, 1}, modulo this polynomial; bit i of a byte is the coefficient of
//! x^i. The following formula uses `^` for the exclusive or of whole numbers, and `/` for division in the field:
//!
//! ```text
//! coefficient(p, d) = (k ^ d) / ((k + p) ^ d)          for 0 <= p < m, 0 <= d < k, k + m <= 256
//! ```
//!
//! This is the Cauchy matrix 1 / ((k + p) ^ d) with each column d scaled such that its first entry is 1. Every square
//! part of a Cauchy matrix can be inverted, because the numbers k + p and d are all different, and the scaling of a
//! column does not affect this. So any `k` members determine all others. The first parity member is always the plain
//! exclusive or of the data, and does not depend on `m`.

mod gf;
mod isal;
mod kernel;

pub use kernel::{Factor, Kernel, add_to_all};

use std::collections::BTreeSet;

/// The maximum number of members of a set, data and parity together: a byte has this many different values.
pub const MEMBERS_MAX: u32 = 256;

/// A systematic code of `data` and `parity` members: any `data` members determine all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code {
    data: u32,
    parity: u32,
}

impl Code {
    /// The code of this many members. `None` if one of the numbers is zero, or if their sum exceeds [`MEMBERS_MAX`].
    pub fn new(data: u32, parity: u32) -> Option<Code> {
        let fits = data >= 1 && parity >= 1 && data.checked_add(parity).is_some_and(|members| members <= MEMBERS_MAX);
        fits.then_some(Code { data, parity })
    }

    /// The number of members that hold data. They are numbered from 0.
    pub fn data(&self) -> u32 {
        self.data
    }

    /// The number of members that hold parity; as many members may be lost. They are numbered after those that hold
    /// data.
    pub fn parity(&self) -> u32 {
        self.parity
    }

    /// The number of all members.
    pub fn members(&self) -> u32 {
        self.data + self.parity
    }

    /// The factor of the data member `data` in the sum that makes the parity member `self.data() + parity`. It is never
    /// zero.
    ///
    /// # Panics
    /// If there is no such data or parity member.
    pub fn coefficient(&self, parity: u32, data: u32) -> u8 {
        assert!(parity < self.parity && data < self.data, "no coefficient ({parity}, {data}) in {self:?}");
        let difference = |row: u32| ((row ^ data) & 0xff) as u8;
        gf::multiply(difference(self.data), gf::inverse(difference(self.data + parity)))
    }

    /// The factor of the data member `data` in the sum that makes the member `member`.
    fn entry(&self, member: u32, data: u32) -> u8 {
        match member.checked_sub(self.data) {
            Some(parity) => self.coefficient(parity, data),
            None => u8::from(member == data),
        }
    }

    /// The sum that gives the member `missing`: members of `present` in ascending order, with their factors, none of
    /// which is zero.
    ///
    /// If more members are present than needed, the lowest are used, so data comes before parity, and plain exclusive or
    /// before multiplication. Order, repetitions and numbers beyond the set in `present` do not matter. If `missing`
    /// itself is present, the sum is that member alone.
    ///
    /// `None` if fewer than [`Code::data`] members are present, or if the member `missing` does not exist.
    pub fn recovery(&self, present: &[u32], missing: u32) -> Option<Vec<(u32, u8)>> {
        let members = self.members();
        if missing >= members {
            return None;
        }
        if present.contains(&missing) {
            return Some(vec![(missing, 1)]);
        }
        let present: BTreeSet<u32> = present.iter().copied().filter(|member| *member < members).collect();
        let used: Vec<u32> = present.iter().copied().take(self.data as usize).collect();
        if used.len() < self.data as usize {
            return None;
        }
        // The wanted row of the code is a combination of the rows that are used. Rows of data members have one nonzero
        // entry each, so the columns of the absent data members determine the factors of the parity members:
        //   sum over parity q of factor(q) * entry(q, d) = entry(missing, d)   for each absent d,
        // and each present data member supplies the remainder in its own column.
        let (parity, data): (Vec<u32>, Vec<u32>) = used.iter().partition(|member| **member >= self.data);
        let absent = (0..self.data).filter(|member| !present.contains(member));
        let equations = absent.map(|column| {
            let mut equation: Vec<u8> = parity.iter().map(|row| self.entry(*row, column)).collect();
            equation.push(self.entry(missing, column));
            equation
        });
        let factors = solve(equations.collect())?;
        let of_data = data.into_iter().map(|column| {
            let sum = parity.iter().zip(&factors).map(|(row, factor)| gf::multiply(*factor, self.entry(*row, column)));
            (column, sum.fold(self.entry(missing, column), |all, one| all ^ one))
        });
        let of_parity = parity.iter().copied().zip(factors.iter().copied());
        Some(of_data.chain(of_parity).filter(|(_, factor)| *factor != 0).collect())
    }
}

/// Solves as many equations as there are unknowns. Each equation consists of its coefficients, followed by its right
/// side. `None` if the equations do not determine the unknowns.
fn solve(mut equations: Vec<Vec<u8>>) -> Option<Vec<u8>> {
    let unknowns = equations.len();
    for column in 0..unknowns {
        let pivot = (column..unknowns).find(|row| equations[*row][column] != 0)?;
        equations.swap(column, pivot);
        let scale = gf::inverse(equations[column][column]);
        equations[column].iter_mut().for_each(|value| *value = gf::multiply(*value, scale));
        let pivot = equations[column].clone();
        for (_, equation) in equations.iter_mut().enumerate().filter(|(row, _)| *row != column) {
            let factor = equation[column];
            equation.iter_mut().zip(&pivot).for_each(|(value, one)| *value ^= gf::multiply(factor, *one));
        }
    }
    equations.into_iter().map(|equation| equation.last().copied()).collect()
}

#[cfg(test)]
mod tests;
