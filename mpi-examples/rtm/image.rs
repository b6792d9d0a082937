//! The image: stacked from the shots' images, filtered, written as a picture.
#![forbid(unsafe_code)]

use super::model::Grid;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// The part of the pixels that is drawn brighter or darker than the picture can show, because the strongest are many times as
/// strong as the reflectors.
const CLIPPED: f64 = 0.02;

/// The sum of the shots' images.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    grid: Grid,
    /// One value per cell of the ground, row by row.
    pub pixels: Vec<f64>,
}

impl Image {
    /// An image without any shot.
    pub fn new(grid: Grid) -> Image {
        Image { grid, pixels: vec![0.0; grid.nx * grid.nz] }
    }

    /// Adds a shot's image. Sums of floating-point numbers depend on their order: shots are added in the order of their numbers,
    /// whichever rank made them.
    pub fn add(&mut self, shot: &[f32]) {
        self.pixels.iter_mut().zip(shot).for_each(|(pixel, value)| *pixel += f64::from(*value));
    }

    /// A digest of all bits.
    pub fn digest(&self) -> String {
        format!("{:032x}", xxh3_128(bytemuck::cast_slice(&self.pixels)))
    }

    /// Minus the Laplacian: it removes what varies slowly, where source and receivers look along the same path. The result is
    /// multiplied by the depth, because the waves grow weaker as they spread.
    #[allow(clippy::needless_range_loop, reason = "neighbours are reached by the same index")]
    pub fn filtered(&self) -> Image {
        let Grid { nx, nz } = self.grid;
        let mut pixels = vec![0.0; nx * nz];
        for z in 1..nz - 1 {
            for at in z * nx + 1..(z + 1) * nx - 1 {
                let around: f64 = [at - 1, at + 1, at - nx, at + nx].iter().map(|near| self.pixels[*near]).sum();
                pixels[at] = z as f64 * (4.0 * self.pixels[at] - around);
            }
        }
        Image { grid: self.grid, pixels }
    }

    /// Writes the image in 8-bit grey, zero in the middle.
    ///
    /// # Errors
    /// Any error that the file system or the encoder reports, with the path.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let wrong = |error: String| format!("picture {}: {error}", path.display());
        let mut strengths: Vec<f64> = self.pixels.iter().map(|pixel| pixel.abs()).collect();
        strengths.sort_by(f64::total_cmp);
        let limit = strengths[((1.0 - CLIPPED) * (strengths.len() - 1) as f64) as usize].max(f64::MIN_POSITIVE);
        let grey = |pixel: &f64| (127.5 * (1.0 + (pixel / limit).clamp(-1.0, 1.0))) as u8;
        let bytes: Vec<u8> = self.pixels.iter().map(grey).collect();
        let file = File::create(path).map_err(|error| wrong(error.to_string()))?;
        let mut encoder = png::Encoder::new(BufWriter::new(file), self.grid.nx as u32, self.grid.nz as u32);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().map_err(|error| wrong(error.to_string()))?;
        writer.write_image_data(&bytes).map_err(|error| wrong(error.to_string()))?;
        writer.finish().map_err(|error| wrong(error.to_string()))
    }
}
