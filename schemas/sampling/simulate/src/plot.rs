//! A picture of a go: desired and observed rate, and the error of the weighted totals, as SVG.

use plotters::prelude::*;
use strobe_sampling::spread::Total;

use crate::outcome::{Outcome, ServiceOutcome};

const SIZE: (u32, u32) = (1_200, 320);

/// A picture that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the plot cannot be drawn: {0}")]
pub struct PlotError(String);

impl Outcome {
    /// Returns an SVG with two rows for each of the first `most` services: samples per hour, desired and
    /// observed; and the error of the weighted CPU time against the truth, hour by hour, with its 95 %
    /// interval.
    ///
    /// # Errors
    /// [`PlotError`] where the numbers cannot be drawn.
    pub fn plot(&self, truth: &[Vec<Vec<f64>>], most: usize) -> Result<String, PlotError> {
        let shown = most.min(self.services.len()).max(1);
        let mut svg = String::new();
        {
            let root =
                SVGBackend::with_string(&mut svg, (SIZE.0, SIZE.1 * 2 * shown as u32)).into_drawing_area();
            root.fill(&WHITE).map_err(wrong)?;
            let rows = root.split_evenly((2 * shown, 1));
            for (pair, (service, truth)) in rows.chunks(2).zip(self.services.iter().zip(truth)) {
                if let [upper, lower] = pair {
                    rates(upper, service)?;
                    errors(lower, service, truth)?;
                }
            }
            root.present().map_err(wrong)?;
        }
        Ok(svg)
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn wrong(error: impl std::fmt::Display) -> PlotError {
    PlotError(error.to_string())
}

fn rates(area: &Area<'_>, service: &ServiceOutcome) -> Result<(), PlotError> {
    let days = service.hours.len() as f64 / 24.0;
    let taken: Vec<f64> = service
        .hours
        .iter()
        .map(|hour| hour.coverage.taken as f64)
        .collect();
    let most = taken.iter().copied().fold(service.desired, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!(
                "{}: samples per hour (grey: each hour, blue: each day, red: desired)",
                service.name
            ),
            ("sans-serif", 16),
        )
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..days, 0.0..most)
        .map_err(wrong)?;
    chart.configure_mesh().x_desc("day").draw().map_err(wrong)?;
    let hours = taken
        .iter()
        .enumerate()
        .map(|(hour, &taken)| ((hour as f64 + 0.5) / 24.0, taken));
    chart
        .draw_series(LineSeries::new(hours, BLACK.mix(0.35)))
        .map_err(wrong)?;
    let daily = (0..days as usize).flat_map(|day| {
        [
            (day as f64, service.rate(day)),
            (day as f64 + 1.0, service.rate(day)),
        ]
    });
    chart
        .draw_series(LineSeries::new(daily, BLUE.stroke_width(2)))
        .map_err(wrong)?;
    let desired = [(0.0, service.desired), (days, service.desired)];
    chart.draw_series(LineSeries::new(desired, RED)).map_err(wrong)?;
    Ok(())
}

fn errors(area: &Area<'_>, service: &ServiceOutcome, truth: &[Vec<f64>]) -> Result<(), PlotError> {
    let days = service.hours.len() as f64 / 24.0;
    let corrections = service.corrections(None);
    let mut points = Vec::new();
    for (at, hour) in service.hours.iter().enumerate() {
        let exact: f64 = truth[at].iter().sum();
        if let Total::Known {
            total, plus_minus, ..
        } = hour.total(hour.parts() - 1, corrections[at])
            && exact > 0.0
        {
            points.push((
                (at as f64 + 0.5) / 24.0,
                (total / exact - 1.0) * 100.0,
                plus_minus / exact * 100.0,
            ));
        }
    }
    let most = points
        .iter()
        .map(|(_, error, half)| error.abs().max(*half))
        .fold(1.0, f64::max)
        * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!(
                "{}: error of the weighted CPU time, % (blue), and its 95 % interval (grey)",
                service.name
            ),
            ("sans-serif", 16),
        )
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..days, -most..most)
        .map_err(wrong)?;
    chart.configure_mesh().x_desc("day").draw().map_err(wrong)?;
    for side in [-1.0, 1.0] {
        let edge = points.iter().map(|&(day, _, half)| (day, side * half));
        chart
            .draw_series(LineSeries::new(edge, BLACK.mix(0.35)))
            .map_err(wrong)?;
    }
    let line = points.iter().map(|&(day, error, _)| (day, error));
    chart.draw_series(LineSeries::new(line, BLUE)).map_err(wrong)?;
    Ok(())
}
