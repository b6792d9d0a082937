//! The replacement for object stores in a build without them.
#![forbid(unsafe_code)]

use super::contract::{Around, Tier};
use std::sync::Arc;

const WHY: &str = "object tier: this build of Bivouac has no object stores: build it with the feature object-store";

/// Why there is no such tier.
///
/// # Errors
/// Always.
pub fn make(_around: &Around<'_>) -> Result<Arc<dyn Tier>, String> {
    Err(WHY.into())
}

/// Why there is no such tier.
///
/// # Errors
/// Always.
pub fn at(_url: &str, _endpoint: Option<&str>) -> Result<Arc<dyn Tier>, String> {
    Err(WHY.into())
}
