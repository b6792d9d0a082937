//! A picture of a two-dimensional array: the lowest value is dark, the highest is bright. In pictures of large arrays, each pixel is the
//! mean of several elements.
#![forbid(unsafe_code)]

use bivouac_core::decomposition::Cuboid;
use bivouac_core::format::ElementType;
use std::io::Write;

/// The maximum width and height of a picture in pixels.
const SIDE_MAX: u64 = 1024;
/// The colours from dark to bright; the colours between them are mixed.
const COLOURS: [[f64; 3]; 6] = [
    [8.0, 8.0, 40.0],
    [72.0, 22.0, 110.0],
    [160.0, 45.0, 96.0],
    [226.0, 92.0, 48.0],
    [248.0, 170.0, 50.0],
    [252.0, 250.0, 200.0],
];

/// The sums of the elements of each pixel.
pub struct Image {
    element: ElementType,
    section: Cuboid,
    size: [u64; 2],
    pixels: Vec<(f64, u64)>,
}

impl Image {
    /// Makes an empty picture of a section of an array.
    ///
    /// # Errors
    /// The section does not have two dimensions, or its elements are not numbers.
    pub fn new(element: ElementType, section: Cuboid, extents: &[u64]) -> Result<Image, String> {
        let &[rows, columns] = extents else {
            return Err(format!(
                "--picture takes two dimensions, but this has {}: without --picture, bivouac extract writes any array",
                extents.len()
            ));
        };
        if matches!(element, ElementType::Record(_)) {
            return Err("--picture takes numbers, but the elements are records".into());
        }
        let size = [rows, columns].map(|extent| extent.min(SIDE_MAX));
        Ok(Image { element, section, size, pixels: vec![(0.0, 0); (size[0] * size[1]) as usize] })
    }

    /// Adds the elements of a band.
    pub fn add(&mut self, band: &Cuboid, bytes: &[u8]) {
        let columns = band.extent(1).max(1);
        for (at, element) in bytes.chunks_exact(self.element.bytes() as usize).enumerate() {
            let place = [at as u64 / columns + band.from[0], at as u64 % columns + band.from[1]];
            let pixel = |dim: usize| (place[dim] - self.section.from[dim]) * self.size[dim] / self.section.extent(dim);
            let value = value(self.element, element);
            if let Some((sum, count)) = self.pixels.get_mut((pixel(0) * self.size[1] + pixel(1)) as usize)
                && value.is_finite()
            {
                (*sum, *count) = (*sum + value, *count + 1);
            }
        }
    }

    /// Writes the picture as PNG.
    ///
    /// # Errors
    /// The system cannot write to the file.
    pub fn write(&self, file: impl Write) -> std::io::Result<()> {
        let means = self.pixels.iter().map(|(sum, count)| if *count > 0 { sum / *count as f64 } else { f64::NAN });
        let means: Vec<f64> = means.collect();
        let known = || means.iter().copied().filter(|mean| mean.is_finite());
        let (least, most) = (known().fold(f64::INFINITY, f64::min), known().fold(f64::NEG_INFINITY, f64::max));
        let pixels: Vec<u8> =
            means.iter().flat_map(|mean| colour((mean - least) / (most - least).max(f64::MIN_POSITIVE))).collect();
        let mut encoder = png::Encoder::new(file, self.size[1] as u32, self.size[0] as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&pixels)?;
        Ok(writer.finish()?)
    }
}

/// The colour of a share from 0 to 1; grey if the share is not finite.
fn colour(share: f64) -> [u8; 3] {
    if !share.is_finite() {
        return [128; 3];
    }
    let at = share.clamp(0.0, 1.0) * (COLOURS.len() - 1) as f64;
    let below = (at as usize).min(COLOURS.len() - 2);
    std::array::from_fn(|part| {
        let [from, to] = [COLOURS[below][part], COLOURS[below + 1][part]];
        (from + (to - from) * (at - below as f64)).round() as u8
    })
}

fn value(element: ElementType, bytes: &[u8]) -> f64 {
    fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        std::array::from_fn(|at| bytes[at])
    }
    match element {
        ElementType::U8 => f64::from(bytes[0]),
        ElementType::I8 => f64::from(bytes[0] as i8),
        ElementType::U16 => f64::from(u16::from_le_bytes(array(bytes))),
        ElementType::I16 => f64::from(i16::from_le_bytes(array(bytes))),
        ElementType::U32 => f64::from(u32::from_le_bytes(array(bytes))),
        ElementType::I32 => f64::from(i32::from_le_bytes(array(bytes))),
        ElementType::U64 => u64::from_le_bytes(array(bytes)) as f64,
        ElementType::I64 => i64::from_le_bytes(array(bytes)) as f64,
        ElementType::F32 => f64::from(f32::from_le_bytes(array(bytes))),
        ElementType::F64 => f64::from_le_bytes(array(bytes)),
        ElementType::Record(_) => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(image: &Image) -> (Vec<u8>, [u32; 2]) {
        let mut bytes = Vec::new();
        image.write(&mut bytes).expect("written");
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().expect("a picture");
        let mut pixels = vec![0; reader.output_buffer_size().expect("it is small")];
        let info = reader.next_frame(&mut pixels).expect("pixels");
        (pixels, [info.height, info.width])
    }

    #[test]
    fn the_least_value_is_dark_and_the_greatest_bright() {
        let section = Cuboid::at(&[4, 10], &[2, 3]).expect("a box");
        let mut image = Image::new(ElementType::F64, section, &[2, 3]).expect("numbers");
        let values = [1.0, 2.0, 3.0, 4.0, f64::NAN, 11.0f64];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        // The elements are added in two bands.
        image.add(&Cuboid::at(&[4, 10], &[1, 3]).expect("a box"), &bytes[..24]);
        image.add(&Cuboid::at(&[5, 10], &[1, 3]).expect("a box"), &bytes[24..]);
        let (pixels, size) = drawn(&image);
        assert_eq!(size, [2, 3]);
        assert_eq!((&pixels[..3], &pixels[15..]), (&[8, 8, 40][..], &[252, 250, 200][..]));
        assert_eq!(pixels[12..15], [128; 3]);
    }

    #[test]
    fn large_arrays_become_means_and_equal_values_one_colour() {
        let section = Cuboid::at(&[0, 0], &[1, 2 * SIDE_MAX]).expect("a box");
        let mut image = Image::new(ElementType::U8, section, &[1, 2 * SIDE_MAX]).expect("numbers");
        image.add(&section, &vec![7; 2 * SIDE_MAX as usize]);
        assert!(image.pixels.iter().all(|pixel| *pixel == (14.0, 2)));
        let (pixels, size) = drawn(&image);
        assert_eq!(size, [1, SIDE_MAX as u32]);
        assert!(pixels.chunks(3).all(|pixel| pixel == &pixels[..3]));
    }

    #[test]
    fn what_is_no_plane_of_numbers_is_refused() {
        let section = Cuboid::at(&[0, 0, 0], &[2, 2, 2]).expect("a box");
        assert!(
            Image::new(ElementType::F64, section, &[2, 2, 2]).err().is_some_and(|text| text.contains("two dimensions"))
        );
        let plane = Cuboid::at(&[0, 0], &[2, 2]).expect("a box");
        assert!(Image::new(ElementType::Record(3), plane, &[2, 2]).is_err());
    }
}
