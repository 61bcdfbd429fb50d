//! Numbers for messages and reports: digits in groups, bytes, times, counts.

/// Returns a number with its digits in groups of three: `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number of bytes with three digits and a binary unit: `1.86 MiB`.
pub fn bytes(number: u64) -> String {
    scaled(number as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// Returns a number of bytes in a binary unit with one decimal, for numbers that differ by little: `139.4 GiB`.
pub fn bytes_in_tenths(number: u64) -> String {
    let kibibytes = number as f64 / 1024.0;
    match kibibytes {
        ..1024.0 => format!("{kibibytes:.1} KiB"),
        1024.0..1_048_576.0 => format!("{:.1} MiB", kibibytes / 1024.0),
        1_048_576.0..1_073_741_824.0 => format!("{:.1} GiB", kibibytes / 1_048_576.0),
        _ => format!("{:.1} TiB", kibibytes / 1_073_741_824.0),
    }
}

/// Returns the sizes in bytes that are not zero, with their names: `parameters 1.86 MiB, gradients 465 KiB`.
pub fn sizes<const N: usize>(named: [(&str, u64); N]) -> String {
    let present = named.into_iter().filter(|(_, size)| *size > 0);
    present.map(|(name, size)| format!("{name} {}", bytes(size))).collect::<Vec<_>>().join(", ")
}

/// Returns a number of floating-point operations with three digits and a unit: `31.4 GFLOP`.
pub fn flops(number: u64) -> String {
    scaled(number as f64, 1000.0, &["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"])
}

/// Returns a time that is given in milliseconds: `1.25 s`, `12.5 ms`, `3.2 µs`.
pub fn milliseconds(ms: f64) -> String {
    match ms {
        _ if ms >= 1000.0 => format!("{:.2} s", ms / 1e3),
        _ if ms >= 1.0 => format!("{ms:.2} ms"),
        _ => format!("{:.1} µs", ms * 1e3),
    }
}

/// Returns a number with three digits and the largest unit that it reaches.
fn scaled(mut number: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while number >= step && unit + 1 < units.len() {
        number /= step;
        unit += 1;
    }
    match number {
        _ if unit == 0 => format!("{number} {}", units[0]),
        n if n < 10.0 => format!("{n:.2} {}", units[unit]),
        n if n < 100.0 => format!("{n:.1} {}", units[unit]),
        n => format!("{n:.0} {}", units[unit]),
    }
}

/// Returns a number with its noun: `1 tensor`, `2 tensors`.
pub fn count(number: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number as u64), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_scaled() {
        assert_eq!(["0", "999", "1,000", "12,345,678"], [0, 999, 1000, 12_345_678].map(grouped));
        assert_eq!(["0 B", "1023 B", "1.00 KiB", "97.7 MiB"], [0, 1023, 1024, 102_400_000].map(bytes));
        assert_eq!(["999 FLOP", "1.50 kFLOP", "315 GFLOP"], [999, 1500, 315_000_000_000].map(flops));
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!((count(1, "node"), count(1200, "node")), ("1 node".into(), "1,200 nodes".into()));
    }
}
