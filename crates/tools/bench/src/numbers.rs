//! The format of values in tables and charts.

/// Formats a value with a sensible number of digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        // Ratios need four digits.
        0.0..1.0 => format!("{value:.4}"),
        1.0..10.0 => format!("{value:.2}"),
        10.0..1000.0 => format!("{value:.1}"),
        _ => grouped(value),
    }
}

/// Formats a ratio with two decimals, or more if it is small.
pub fn times(value: f64) -> String {
    match value.abs() {
        0.0..0.095 => format!("{value:.3}"),
        0.095..100.0 => format!("{value:.2}"),
        _ => grouped(value),
    }
}

/// Formats a number with thousands separators.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", &*digits), |rest| ("-", rest));
    let first = digits.len() % 3;
    let mut text = sign.to_owned() + &digits[..first];
    for (at, group) in digits.as_bytes()[first..].chunks(3).enumerate() {
        if at > 0 || first > 0 {
            text.push(',');
        }
        text += &String::from_utf8_lossy(group);
    }
    text
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let all =
            [(0.12345, "0.1235"), (1.5, "1.50"), (12.34, "12.3"), (1234.4, "1,234"), (999_999.9, "1,000,000"), (-12_345.0, "-12,345")];
        all.into_iter().for_each(|(value, text)| assert_eq!(short(value), text));
        let ratios = [(0.0123, "0.012"), (0.9996, "1.00"), (12.345, "12.35"), (1234.0, "1,234")];
        ratios.into_iter().for_each(|(value, text)| assert_eq!(times(value), text));
    }
}
