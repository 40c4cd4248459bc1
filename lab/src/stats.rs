//! Figures about a set of measurements.

/// The value at this percentile, by the nearest rank; 0 for an empty set.
pub(crate) fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Rounds for printing: three decimal places.
pub(crate) fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// A distribution with one bar per bucket; the buckets' upper bounds double.
pub(crate) fn histogram(values: &[f64], unit: &str) -> String {
    let mut text = String::new();
    let most = values.iter().copied().fold(0.0, f64::max);
    let (mut low, mut high) = (0.0, 1.0);
    while low < most {
        let n = values.iter().filter(|v| **v > low && **v <= high).count();
        let bar = "█".repeat((n * 40).div_ceil(values.len().max(1)));
        if n > 0 || low > 0.0 {
            text.push_str(&format!("  {low:>6} to {high:>6} {unit}  {n:>5}  {bar}\n"));
        }
        (low, high) = (high, high * 2.0);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_use_the_nearest_rank() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!([50.0, 99.0, 100.0].map(|p| percentile(&values, p)), [50.0, 99.0, 100.0]);
        assert_eq!(percentile(&[7.0], 99.0), 7.0);
        assert_eq!(percentile(&[], 50.0), 0.0);
    }

    #[test]
    fn every_value_is_in_one_bar() {
        let text = histogram(&[0.5, 1.5, 3.0, 3.5, 9.0], "ms");
        let counted: usize =
            text.lines().filter_map(|l| l.split_whitespace().nth(4)?.parse::<usize>().ok()).sum();
        assert_eq!(counted, 5, "{text}");
    }
}
