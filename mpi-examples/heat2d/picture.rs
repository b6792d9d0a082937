//! Pictures in and out: a PNG as the initial plate, a PNG or text of a field, and the digest of its bytes.
//!
//! A field is written row by row, so rank 0 never holds the whole plate: each of [`PngOut`], [`TextOut`] and
//! [`FieldDigest`] takes one row of the plate after another, from north to south.
#![forbid(unsafe_code)]

use super::plate::{Grid, HOTTEST};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// A grey picture stretched over the plate: bright cells start hot, dark cells conduct well.
pub struct Picture {
    grid: Grid,
    width: usize,
    height: usize,
    grey: Vec<u8>,
}

impl Picture {
    /// Reads a PNG of any colour type.
    ///
    /// # Errors
    /// Any error that the file system or the decoder reports, with the path.
    pub fn load(path: &Path, grid: Grid) -> Result<Self, String> {
        let wrong = |why: String| format!("picture {}: {why}", path.display());
        let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        Self::decode(BufReader::new(file), grid).map_err(wrong)
    }

    /// Decodes a PNG.
    ///
    /// # Errors
    /// Any error that the decoder reports.
    pub fn decode(source: impl io::BufRead + io::Seek, grid: Grid) -> Result<Self, String> {
        let mut decoder = png::Decoder::new(source);
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        let mut reader = decoder.read_info().map_err(|error| error.to_string())?;
        let length = reader.output_buffer_size().ok_or("it is too large")?;
        let mut pixels = vec![0; length];
        let frame = reader.next_frame(&mut pixels).map_err(|error| error.to_string())?;
        let samples = frame.color_type.samples();
        let grey = pixels[..frame.buffer_size()].chunks_exact(samples).map(grey_of).collect();
        Ok(Picture { grid, width: frame.width as usize, height: frame.height as usize, grey })
    }

    /// Initial temperature of a cell.
    pub fn temperature(&self, x: usize, y: usize) -> f64 {
        self.brightness(x, y) * HOTTEST
    }

    /// Conductivity of a cell.
    pub fn conductivity(&self, x: usize, y: usize) -> f64 {
        0.1 + 0.9 * (1.0 - self.brightness(x, y))
    }

    /// A name that differs between pictures.
    pub fn fingerprint(&self) -> String {
        format!("{}x{}-{:032x}", self.width, self.height, xxh3_128(&self.grey))
    }

    fn brightness(&self, x: usize, y: usize) -> f64 {
        let column = x * self.width / self.grid.nx;
        let row = y * self.height / self.grid.ny;
        f64::from(self.grey[row * self.width + column]) / 255.0
    }
}

/// Grey value of a pixel of one to four samples: grey, grey and alpha, RGB, RGBA. Alpha is ignored.
fn grey_of(pixel: &[u8]) -> u8 {
    match pixel {
        [red, green, blue, ..] => ((u32::from(*red) * 77 + u32::from(*green) * 150 + u32::from(*blue) * 29) >> 8) as u8,
        [grey, ..] => *grey,
        [] => 0,
    }
}

/// Writes a field as a PNG, one pixel per cell, from black over red and yellow to white.
pub struct PngOut {
    stream: png::StreamWriter<'static, BufWriter<File>>,
    line: Vec<u8>,
}

impl PngOut {
    /// Creates the file.
    ///
    /// # Errors
    /// Any error that the file system reports.
    pub fn create(path: &Path, grid: Grid) -> io::Result<Self> {
        let mut encoder = png::Encoder::new(BufWriter::new(File::create(path)?), grid.nx as u32, grid.ny as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        Ok(PngOut { stream: encoder.write_header()?.into_stream_writer()?, line: Vec::new() })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// Any error that the file system reports.
    pub fn row(&mut self, row: &[f64]) -> io::Result<()> {
        self.line.clear();
        self.line.extend(row.iter().flat_map(|t| colour(*t)));
        self.stream.write_all(&self.line)
    }

    /// Completes the file.
    ///
    /// # Errors
    /// Any error that the file system reports, or that rows are missing.
    pub fn finish(self) -> io::Result<()> {
        Ok(self.stream.finish()?)
    }
}

fn colour(temperature: f64) -> [u8; 3] {
    let heat = (temperature / HOTTEST).clamp(0.0, 1.0) * 3.0;
    [heat, heat - 1.0, heat - 2.0].map(|part| (part.clamp(0.0, 1.0) * 255.0) as u8)
}

/// Draws a field with characters, for a terminal.
pub struct TextOut {
    grid: Grid,
    columns: usize,
    lines: usize,
    row: usize,
    text: String,
}

impl TextOut {
    /// A drawing of at most 72 columns and 24 lines.
    pub fn new(grid: Grid) -> Self {
        TextOut { grid, columns: grid.nx.min(72), lines: grid.ny.min(24), row: 0, text: String::new() }
    }

    /// Adds a row; the middle row of each line's share is the one that is drawn.
    pub fn row(&mut self, row: &[f64]) {
        const RAMP: &[u8] = b" .:-=+*#%@";
        let line = self.row * self.lines / self.grid.ny;
        if self.row == (2 * line + 1) * self.grid.ny / (2 * self.lines) {
            for column in 0..self.columns {
                let heat = row[(2 * column + 1) * self.grid.nx / (2 * self.columns)] / HOTTEST;
                let shade = (heat.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64).round() as usize;
                self.text.push(char::from(RAMP[shade]));
            }
            self.text.push('\n');
        }
        self.row += 1;
    }

    /// The drawing.
    pub fn finish(self) -> String {
        self.text
    }
}

/// FNV-1a, 64 bits, over all cells of the plate, row by row from north to south, as little-endian doubles: a few lines in any
/// language, so that the same program in C or Fortran can be compared with this one.
pub struct FieldDigest(u64);

impl Default for FieldDigest {
    fn default() -> Self {
        FieldDigest(0xcbf2_9ce4_8422_2325)
    }
}

impl FieldDigest {
    /// Adds a row.
    pub fn row(&mut self, row: &[f64]) {
        for byte in row.iter().flat_map(|t| t.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The digest as 16 hexadecimal digits.
    pub fn finish(self) -> String {
        format!("{:016x}", self.0)
    }
}
