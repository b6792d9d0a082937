//! Pictures of a few series of points: as an SVG document, and the same numbers as CSV. `bivouac plan` draws its
//! figures with this module, and `benches/plots.rs` draws figures of measurements. A picture is a value; nothing is
//! read or written here.
#![forbid(unsafe_code)]

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

/// The size of the drawing in pixels, without its legend.
const SIZE: (u32, u32) = (720, 420);
/// Sizes in the legend, in pixels: the width of a character, the height of a line, and the indent of the words.
const LEGEND: (usize, i32, i32) = (8, 20, 20);
const COLOURS: [RGBColor; 10] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(23, 190, 207),
    RGBColor(90, 90, 90),
    RGBColor(188, 189, 34),
    RGBColor(227, 119, 194),
];

/// How a series looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Look {
    /// Bars over names, a line over numbers.
    #[default]
    Usual,
    /// A line.
    Line,
    /// Dots, side by side over a name.
    Dots,
}

/// Points with the same colour.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Positions along x, and values.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub look: Look,
}

impl Series {
    /// A series that looks as usual.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, look: Look::Usual }
    }
}

/// A picture to be drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// Its file's name, without an extension.
    pub file: String,
    /// The title above the drawing.
    pub title: String,
    /// What the x axis shows, with its unit.
    pub x: &'static str,
    /// What the y axis shows, with its unit.
    pub y: &'static str,
    /// x is 0, 1, 2 … and these are the names at these positions; without names, x is a number.
    pub names: Vec<String>,
    /// Is the y axis logarithmic?
    pub is_log: bool,
    /// The range of the y axis; `None`: from 0 to a little more than the highest point.
    pub range: Option<Range<f64>>,
    /// What is drawn, the first series below the others; lines come first.
    pub series: Vec<Series>,
}

impl Picture {
    /// The points as CSV, one per line.
    pub fn csv(&self) -> String {
        let mut text = format!("series,{},{}\n", self.x, self.y);
        for series in &self.series {
            for (x, y) in &series.points {
                let x = self.names.get(*x as usize).cloned().unwrap_or_else(|| x.to_string());
                text += &format!("\"{}\",{x},{y}\n", series.name);
            }
        }
        text
    }

    /// The picture as an SVG document.
    ///
    /// # Errors
    /// The drawing library refuses something; it writes into memory.
    pub fn svg(&self) -> Result<String, Box<dyn Error>> {
        let mut text = String::new();
        self.draw(&mut text)?;
        Ok(text)
    }

    fn draw(&self, text: &mut String) -> Result<(), Box<dyn Error>> {
        // The legend is beside the drawing: inside, it would cover data, wherever the data happen to be.
        let longest = self.series.iter().map(|series| series.name.chars().count()).max().unwrap_or_default();
        let size = (SIZE.0 + (longest * LEGEND.0) as u32 + LEGEND.2 as u32 * 2, SIZE.1);
        let whole = SVGBackend::with_string(text, size).into_drawing_area();
        whole.fill(&WHITE)?;
        let (area, beside) = whole.split_horizontally(SIZE.0);
        self.legend(&beside)?;
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (low, high) = points().fold((f64::MAX, 0.0f64), |(low, high), (_, y)| (low.min(*y), high.max(*y)));
        let from = points().map(|(x, _)| *x).fold(f64::MAX, f64::min);
        let to = points().map(|(x, _)| *x).fold(f64::MIN, f64::max);
        let x = match self.names.len() {
            0 => from - (to - from).max(0.1) * 0.03..to + (to - from).max(0.1) * 0.03,
            names => -0.5..names as f64 - 0.5,
        };
        match (&self.range, self.is_log) {
            (Some(range), _) => self.chart(&area, x, range.clone(), range.start)?,
            (None, true) => self.chart(&area, x, (low / 2.0..high * 2.0).log_scale(), low / 2.0)?,
            (None, false) => self.chart(&area, x, 0.0..high * 1.1, 0.0)?,
        }
        whole.present()?;
        Ok(())
    }

    fn legend(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn Error>> {
        let (_, line, indent) = LEGEND;
        for (index, series) in self.series.iter().enumerate() {
            let y = 50 + index as i32 * line;
            area.draw(&Rectangle::new([(0, y - 4), (12, y + 4)], colour_of(index).filled()))?;
            area.draw(&Text::new(series.name.as_str(), (indent, y - 6), ("sans-serif", 13)))?;
        }
        Ok(())
    }

    fn chart<Y>(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        x: Range<f64>,
        y: Y,
        floor: f64,
    ) -> Result<(), Box<dyn Error>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 16))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)?;
        let named = |value: &f64| match self.names.is_empty() {
            true => format!("{}", (value * 100.0).round() / 100.0),
            false if (value - value.round()).abs() < 0.01 => {
                self.names.get(value.round() as usize).cloned().unwrap_or_default()
            }
            false => String::new(),
        };
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.x).y_desc(self.y).light_line_style(WHITE).x_label_formatter(&named);
        let short = |value: &f64| format!("{}", (value * 1e3).round() / 1e3);
        mesh.y_label_formatter(&short);
        if !self.names.is_empty() {
            mesh.x_labels(self.names.len() * 2 + 1).disable_x_mesh();
        }
        mesh.draw()?;
        // Bars and dots are drawn side by side.
        let is_line = |series: &&Series| series.look == Look::Line;
        let lines = self.series.iter().take_while(is_line).count();
        let width = 0.8 / (self.series.len() - lines).max(1) as f64;
        for (index, series) in self.series.iter().enumerate() {
            let (colour, left) = (colour_of(index), -0.4 + width * (index as f64 - lines as f64));
            match (series.look, self.names.is_empty()) {
                (Look::Usual, true) | (Look::Line, _) => {
                    chart.draw_series(LineSeries::new(series.points.iter().copied(), colour.stroke_width(2)))?;
                    if series.points.len() < 20 {
                        chart.draw_series(series.points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
                    }
                }
                (Look::Usual, false) => {
                    let bar = |(x, y): &(f64, f64)| {
                        Rectangle::new([(x + left, floor), (x + left + width * 0.9, *y)], colour.filled())
                    };
                    chart.draw_series(series.points.iter().map(bar))?;
                }
                (Look::Dots, is_number) => {
                    let beside = if is_number { 0.0 } else { left + width / 2.0 };
                    let dot = |(x, y): &(f64, f64)| Circle::new((x + beside, *y), 4, colour.filled());
                    chart.draw_series(series.points.iter().map(dot))?;
                }
            }
        }
        Ok(())
    }
}

fn colour_of(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Picture {
        let line = Series { name: "<line>".into(), points: vec![(0.0, 81.0), (1.0, 99.0)], look: Look::Line };
        let dots = Series { name: "dots".into(), points: vec![(1.0, 90.0)], look: Look::Dots };
        Picture {
            title: "a title".into(),
            x: "GPUs",
            y: "work [%]",
            names: vec!["2".into(), "4".into()],
            range: Some(80.0..100.0),
            series: vec![line, dots],
            ..Picture::default()
        }
    }

    #[test]
    fn numbers_stand_beside_their_names() {
        assert_eq!(picture().csv(), "series,GPUs,work [%]\n\"<line>\",2,81\n\"<line>\",4,99\n\"dots\",4,90\n");
    }

    #[test]
    fn a_drawing_says_what_it_shows() {
        let svg = picture().svg().expect("drawn");
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for words in ["a title", "GPUs", "work [%]", "&lt;line&gt;", "dots", "80", "100"] {
            assert!(svg.contains(words), "{words} in {svg}");
        }
        // A line with two points on it, and a dot.
        assert_eq!((svg.matches("<polyline").count() > 0, svg.matches("<circle").count()), (true, 3));
    }
}
