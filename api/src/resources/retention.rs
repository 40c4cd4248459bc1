//! Retention: how long the address of a stateful pod is retained after the pod has ended.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::value::ValueError;

/// How long an address is retained after its pod has ended, whether or not the pod's workload still
/// exists. Without a retention it is retained as long as the workload exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// For this time.
    For(Duration),
    /// Until its IPInstance is deleted.
    Forever,
}

/// The units of a time, with their seconds; the longest first.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// The largest number of digits of a time.
const DIGITS: usize = 6;

impl FromStr for Retention {
    type Err = ValueError;

    /// Parses `never`, or a positive number with a unit: `30s`, `15m`, `72h`, `30d`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError {
            value: text.to_owned(),
            expected: "a retention: write a time such as 30m, 72h or 30d, or `never` for an address that is never released",
        };
        if text == "never" {
            return Ok(Retention::Forever);
        }
        let (_, seconds) = UNITS.into_iter().find(|(unit, _)| text.ends_with(*unit)).ok_or_else(wrong)?;
        let number = &text[..text.len() - 1];
        let is_number = number.len() <= DIGITS && number.bytes().all(|digit| digit.is_ascii_digit());
        match number.parse::<u64>() {
            Ok(count) if is_number && count > 0 => Ok(Retention::For(Duration::from_secs(count * seconds))),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Retention::For(time) = self else { return f.write_str("never") };
        let seconds = time.as_secs();
        // The last unit divides every number.
        let divides = |(_, of): &(char, u64)| seconds.is_multiple_of(*of);
        let (unit, of) = UNITS.into_iter().find(divides).unwrap_or(('s', 1));
        write!(f, "{}{unit}", seconds / of)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_number_and_a_unit() {
        for (text, seconds, shown) in [
            ("5s", 5, "5s"),
            ("90s", 90, "90s"),
            ("60s", 60, "1m"),
            ("15m", 900, "15m"),
            ("72h", 259_200, "3d"),
            ("71h", 255_600, "71h"),
            ("30d", 2_592_000, "30d"),
            ("999999d", 86_399_913_600, "999999d"),
        ] {
            let retention: Retention = text.parse().unwrap();
            assert_eq!(retention, Retention::For(Duration::from_secs(seconds)), "{text}");
            assert_eq!(retention.to_string(), shown);
        }
        assert_eq!("never".parse(), Ok(Retention::Forever));
        assert_eq!(Retention::Forever.to_string(), "never");
        for text in
            ["", "0h", "72", "h", "-1h", "+1h", "1.5h", "72 h", "1h30m", "1w", "Never", "1000000s", "72h "]
        {
            let error = text.parse::<Retention>().unwrap_err().to_string();
            assert!(error.contains("write a time such as 30m, 72h or 30d"), "{text}: {error}");
        }
    }
}
