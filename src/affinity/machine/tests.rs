//! Readers against each other and against machines that were written by hand.
#![allow(clippy::unwrap_used)]

use super::*;
