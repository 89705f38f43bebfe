//! The figures as bars: p50 of each side, on a logarithmic scale, with its ratio from the table.

use std::{error::Error, path::Path, time::Duration};

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::figures::{Row, Side, time};

const WIDTH: i32 = 860;
/// The start of the bars, and their maximum width.
const LEFT: i32 = 330;
const SPAN: i32 = 390;
const TOP: i32 = 50;
const BAR: i32 = 16;
const GAP: i32 = 14;
/// The shortest and the longest bar, as powers of ten of a microsecond.
const DECADES: std::ops::RangeInclusive<i32> = 0..=6;

/// Draws the rows that have times.
pub fn draw(file: &Path, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let rows: Vec<&Row> = rows.iter().filter(|row| !row.sides.is_empty()).collect();
    let bars: usize = rows.iter().map(|row| row.sides.len()).sum();
    let bottom = TOP + bars as i32 * BAR + rows.len() as i32 * GAP;
    let area = SVGBackend::new(file, (WIDTH as u32, (bottom + 40) as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let text = |words: &str, size: i32, place: HPos, at: (i32, i32)| {
        let style = ("sans-serif", size).into_text_style(&area).pos(Pos::new(place, VPos::Center));
        area.draw(&Text::new(words.to_owned(), at, style))
    };
    text(
        "What the gateway adds: p50 direct (grey), through Nonet (blue), through FastMCP's proxy (orange)",
        17,
        HPos::Center,
        (WIDTH / 2, 22),
    )?;
    for decade in DECADES {
        let x = LEFT + SPAN * decade / DECADES.end();
        area.draw(&PathElement::new([(x, TOP - 6), (x, bottom)], RGBColor(225, 225, 225)))?;
        let label = ["1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s"][decade as usize];
        text(label, 12, HPos::Center, (x, bottom + 14))?;
    }
    let mut y = TOP;
    for row in rows {
        let middle = y + row.sides.len() as i32 * BAR / 2;
        text(&row.what, 13, HPos::Right, (LEFT - 10, middle))?;
        for side in &row.sides {
            let end = LEFT + length(side.p50);
            area.draw(&Rectangle::new([(LEFT, y + 1), (end, y + BAR - 1)], colour(side).filled()))?;
            let label = match side.name {
                "direct" => time(side.p50),
                _ => format!("{} ({:.1} times)", time(side.p50), row.ratio(side)),
            };
            text(&label, 12, HPos::Left, (end + 6, y + BAR / 2))?;
            y += BAR;
        }
        y += GAP;
    }
    area.present()?;
    Ok(())
}

fn colour(side: &Side) -> RGBColor {
    match side.name {
        "direct" => RGBColor(150, 150, 150),
        "gateway" => RGBColor(30, 90, 190),
        _ => RGBColor(200, 80, 30),
    }
}

fn length(time: Duration) -> i32 {
    let decades = (time.as_secs_f64() * 1e6).max(1.0).log10();
    (decades / f64::from(*DECADES.end()) * f64::from(SPAN)) as i32
}
