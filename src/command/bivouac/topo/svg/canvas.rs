//! SVG as text: rectangles, words and hints, with sizes in pixels.
#![forbid(unsafe_code)]

use std::fmt::Write;

/// The colour of words.
pub const INK: &str = "#1f2933";
/// The colour of less important words.
pub const FAINT: &str = "#5f6b7a";
/// The mean width of a letter, as a part of the type size.
const LETTER: f64 = 0.57;

/// A drawing in the making.
#[derive(Default)]
pub struct Canvas {
    body: String,
}

/// How words are placed relative to a point.
#[derive(Clone, Copy)]
pub enum Anchor {
    /// The words begin there.
    Start,
    /// The middle of the words is there.
    Middle,
}

/// How words look.
#[derive(Clone, Copy)]
pub struct Type {
    /// The size in pixels.
    pub size: f64,
    /// The colour.
    pub fill: &'static str,
    /// Is the type bold?
    pub is_bold: bool,
}

impl Type {
    /// Plain words of this size.
    pub const fn plain(size: f64) -> Type {
        Type { size, fill: INK, is_bold: false }
    }

    /// Less important words of this size.
    pub const fn faint(size: f64) -> Type {
        Type { size, fill: FAINT, is_bold: false }
    }

    /// More important words of this size.
    pub const fn bold(size: f64) -> Type {
        Type { size, fill: INK, is_bold: true }
    }
}

/// A rectangle.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Area {
    /// Left edge.
    pub x: f64,
    /// Upper edge.
    pub y: f64,
    /// Its width.
    pub width: f64,
    /// Its height.
    pub height: f64,
}

/// Writing to a `String` cannot fail.
macro_rules! line {
    ($text:expr, $($part:tt)*) => { writeln!($text, $($part)*).expect("a String takes everything") };
}

impl Canvas {
    /// Adds a rectangle with a colour and a border (a colour, or `none`); `hint` is shown when a pointer rests on it.
    pub fn area(&mut self, area: Area, fill: &str, border: &str, hint: &str) {
        let Area { x, y, width, height } = area;
        let shape = format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\" stroke=\"{border}\""
        );
        match hint {
            "" => line!(self.body, "{shape}/>"),
            hint => line!(self.body, "{shape}><title>{}</title></rect>", escaped(hint)),
        }
    }

    /// Adds a rectangle with round corners, a colour and a border, which may be dashed.
    pub fn frame(&mut self, area: Area, fill: &str, border: &str, is_dashed: bool) {
        let Area { x, y, width, height } = area;
        let dashes = if is_dashed { " stroke-dasharray=\"5 4\"" } else { "" };
        line!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"5\" fill=\"{fill}\" \
             stroke=\"{border}\"{dashes}/>"
        );
    }

    /// Adds words on one line, whose baseline is at `y`.
    pub fn words(&mut self, x: f64, y: f64, anchor: Anchor, how: Type, words: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
        };
        let weight = if how.is_bold { " font-weight=\"bold\"" } else { "" };
        let (size, fill) = (how.size, how.fill);
        line!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{fill}\"{anchor}{weight}>{}</text>",
            escaped(words)
        );
    }

    /// Finishes the drawing and returns the whole document.
    pub fn finish(self, width: f64, height: f64) -> String {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"DejaVu Sans, Verdana, Helvetica, Arial, sans-serif\">\n\
             <defs><pattern id=\"orphan\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect width=\"2.2\" height=\"6\" fill=\"#000000\" fill-opacity=\"0.42\"/></pattern></defs>\n\
             <rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// The approximate width of words.
pub fn width_of(words: &str, size: f64) -> f64 {
    words.chars().count() as f64 * size * LETTER
}

/// Shortens words to fit into a width: their middle is left out if necessary, because paths differ at their ends.
pub fn fitted(words: &str, width: f64, size: f64) -> String {
    let room = (width / (size * LETTER)).max(3.0) as usize;
    let letters: Vec<char> = words.chars().collect();
    if letters.len() <= room {
        return words.to_owned();
    }
    let tail = (room - 1) * 2 / 3;
    let (first, last) = (&letters[..room - 1 - tail], &letters[letters.len() - tail..]);
    first.iter().chain(['…'].iter()).chain(last).collect()
}

/// Escapes text of a file as XML text, which has no control characters.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\n' => safe.push(' '),
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            letter if letter.is_control() => safe.push('\u{fffd}'),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_files_cannot_break_the_document() {
        assert_eq!(escaped("a<b>&\"c\"\u{1b}\u{ffff}ü"), "a&lt;b&gt;&amp;&quot;c&quot;\u{fffd}\u{fffd}ü");
    }

    #[test]
    fn long_words_lose_their_middle() {
        assert_eq!(fitted("short", 100.0, 10.0), "short");
        let long = fitted("/a/very/long/path/to/a/checkpoint: heat", 100.0, 10.0);
        assert!(long.starts_with("/a/") && long.ends_with(": heat") && long.contains('…'), "{long}");
        assert!(width_of(&long, 10.0) <= 100.0);
        assert_eq!(fitted("abcdef", 0.0, 10.0).chars().count(), 3);
    }
}
