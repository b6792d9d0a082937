//! Values as they were written, in TOML or in a variable.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt;
use toml::de::{DeTable, DeValue};

/// A value as it was written, before it is checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Raw {
    /// A TOML integer.
    Integer(i128),
    /// A TOML float.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// A quoted TOML string.
    Text(String),
    /// An unquoted TOML date or time.
    Time(String),
    /// The text of an environment variable, whose type is unknown.
    Word(String),
    /// A TOML table, in the order of the text.
    Table(Vec<(String, Raw)>),
    /// Something that no key accepts, described in words.
    Other(String),
}

impl Raw {
    /// Takes a TOML value.
    pub(super) fn of(value: &DeValue<'_>) -> Raw {
        match value {
            DeValue::String(text) => Raw::Text(text.clone().into_owned()),
            DeValue::Boolean(value) => Raw::Bool(*value),
            DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
                Ok(value) => Raw::Integer(value),
                Err(_) => Raw::Other(number.to_string()),
            },
            DeValue::Float(number) => match number.as_str().parse() {
                Ok(value) => Raw::Float(value),
                Err(_) => Raw::Other(number.to_string()),
            },
            DeValue::Datetime(time) => Raw::Time(time.to_string()),
            DeValue::Array(_) => Raw::Other("an array".to_owned()),
            DeValue::Table(table) => {
                let entries = by_offset(table).into_iter();
                Raw::Table(entries.map(|(_, name, value)| (name.to_owned(), Raw::of(value))).collect())
            }
        }
    }

    /// The entries of a table. In an environment variable, a table is written as an inline TOML table.
    pub(super) fn table(&self) -> Option<Cow<'_, [(String, Raw)]>> {
        match self {
            Raw::Table(entries) => Some(Cow::Borrowed(entries)),
            Raw::Word(word) => {
                let value = DeValue::parse(word.trim()).ok()?;
                match Raw::of(value.get_ref()) {
                    Raw::Table(entries) => Some(Cow::Owned(entries)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Raw::Text(text) | Raw::Word(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn integer(&self) -> Option<u64> {
        match self {
            Raw::Integer(value) => u64::try_from(*value).ok(),
            // Rust's parser would also accept a sign, which the other readers of numbers refuse.
            Raw::Word(word) if word.trim().bytes().all(|b| b.is_ascii_digit()) => word.trim().parse().ok(),
            _ => None,
        }
    }

    pub(super) fn float(&self) -> Option<f64> {
        let value = match self {
            Raw::Integer(value) => *value as f64,
            Raw::Float(value) => *value,
            Raw::Word(word) => word.trim().parse().ok()?,
            _ => return None,
        };
        // Adding zero turns a negative zero into the positive one, which prints differently.
        value.is_finite().then_some(value + 0.0)
    }
}

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Raw::Integer(value) => write!(f, "{value}"),
            Raw::Float(value) => write!(f, "{value:?}"),
            Raw::Bool(value) => write!(f, "{value}"),
            Raw::Text(text) | Raw::Word(text) => write!(f, "{text:?}"),
            Raw::Time(text) | Raw::Other(text) => f.write_str(text),
            Raw::Table(entries) if entries.is_empty() => f.write_str("{}"),
            Raw::Table(entries) => {
                for (at, (name, value)) in entries.iter().enumerate() {
                    f.write_str(if at == 0 { "{ " } else { ", " })?;
                    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                    match !name.is_empty() && name.chars().all(is_bare) {
                        true => write!(f, "{name} = {value}")?,
                        false => write!(f, "{name:?} = {value}")?,
                    }
                }
                f.write_str(" }")
            }
        }
    }
}

/// The entries of a table in the order of the text, each with its offset, name and value.
pub(super) fn by_offset<'a>(table: &'a DeTable<'_>) -> Vec<(usize, &'a str, &'a DeValue<'a>)> {
    let mut entries: Vec<_> =
        table.iter().map(|(name, value)| (name.span().start, name.get_ref().as_ref(), value.get_ref())).collect();
    entries.sort_by_key(|(offset, ..)| *offset);
    entries
}
