//! A colour for each rank, light enough for dark words on it.
#![forbid(unsafe_code)]

/// The colours for a few ranks, which are easy to tell apart.
const FEW: [&str; 8] = ["#7fb3e6", "#f6b26b", "#86cf94", "#f08f8f", "#bfa2e0", "#f2dc6d", "#7ed3d1", "#f0a3cf"];
/// The golden angle in degrees. In steps of this angle around the colour wheel, no two of many ranks meet, and
/// neighbours are far apart.
const ANGLE: f64 = 137.508;

/// The colour of the rank at an index among `count` ranks.
pub fn of(place: usize, count: usize) -> String {
    match FEW.get(place).filter(|_| count <= FEW.len()) {
        Some(colour) => (*colour).to_owned(),
        None => {
            let (saturation, lightness) = [(0.70, 0.72), (0.55, 0.64), (0.85, 0.80)][place % 3];
            hex((place as f64 * ANGLE) % 360.0, saturation, lightness)
        }
    }
}

/// Makes a colour from a hue in degrees, and a saturation and a lightness from 0 to 1.
fn hex(hue: f64, saturation: f64, lightness: f64) -> String {
    let chroma = saturation * lightness.min(1.0 - lightness);
    let part = |offset: f64| {
        let k = (offset + hue / 30.0) % 12.0;
        let value = lightness - chroma * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        (value * 255.0).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", part(0.0), part(8.0), part(4.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn many_ranks_have_as_many_colours() {
        for count in [1, 8, 9, 128] {
            let colours: BTreeSet<String> = (0..count).map(|place| of(place, count)).collect();
            assert_eq!(colours.len(), count);
            assert!(colours.iter().all(|colour| colour.len() == 7));
        }
        assert_eq!(
            (hex(0.0, 1.0, 0.5), hex(120.0, 1.0, 0.5), hex(77.0, 0.0, 1.0)),
            ("#ff0000".into(), "#00ff00".into(), "#ffffff".into())
        );
    }
}
