//! The rates of a device as an option of a pass: whole numbers, so that options can be compared, printed and read back.

use ir::DType;
use ir::machine::{Device, FlopRates, Link, Preset, Unit};
use std::fmt;
use std::str::FromStr;

/// The element types that [`FlopRates`] distinguishes.
const TYPES: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];
/// Operations per second in a unit of [`DeviceRates::matrices`] and [`DeviceRates::elements`].
const GIGA: f64 = 1e9;
/// Bytes per second in a unit of [`DeviceRates::memory`] and [`DeviceRates::link`].
const MEGA: f64 = 1e6;
/// Seconds in a unit of [`DeviceRates::latency`] and [`DeviceRates::launch`].
const NANO: f64 = 1e-9;

/// The rates that a device attains. Its text is the name of a preset, such as `h200`, or all rates:
/// `matrices:67/67/989/989+elements:33/67/67/67+convolution:794+attention:356+memory:3015+link:378+latency:1000+launch:1500`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRates {
    /// GFLOP/s of multiplications in f64, f32, f16 and bf16.
    matrices: [u64; 4],
    /// GFLOP/s on single elements, in the same types.
    elements: [u64; 4],
    /// GFLOP/s of convolutions in f16.
    convolution: u64,
    /// GFLOP/s of attention in f16.
    attention: u64,
    /// MB/s to and from memory.
    memory: u64,
    /// MB/s to the other devices of the node.
    link: u64,
    /// Nanoseconds of a message to the other devices of the node.
    latency: u64,
    /// Nanoseconds from one kernel to the next.
    launch: u64,
}

impl DeviceRates {
    /// Returns the rates of a device.
    pub fn of(device: &Device) -> Self {
        let whole = |number: f64, unit: f64| (number / unit).round().max(1.0) as u64;
        Self {
            matrices: TYPES.map(|dtype| whole(device.rate(Unit::Matrices(dtype)), GIGA)),
            elements: TYPES.map(|dtype| whole(device.rate(Unit::Elements(dtype)), GIGA)),
            convolution: whole(device.rate(Unit::Convolution(DType::F16)), GIGA),
            attention: whole(device.rate(Unit::Attention(DType::F16)), GIGA),
            memory: whole(device.memory_rate(), MEGA),
            link: whole(device.link.rate(), MEGA),
            latency: (device.link.latency / NANO).round() as u64,
            launch: (device.launch / NANO).round() as u64,
        }
    }

    /// Returns a device that attains these rates.
    pub fn device(&self) -> Device {
        let link =
            Link { bandwidth: self.link as f64 * MEGA, attained: 1.0, latency: self.latency as f64 * NANO };
        let flops = |[f64, f32, f16, bf16]: [u64; 4]| {
            let rate = |rate: u64| rate as f64 * GIGA;
            FlopRates { f64: rate(f64), f32: rate(f32), f16: rate(f16), bf16: rate(bf16) }
        };
        let matrices = flops(self.matrices);
        let mut device = Device {
            matrices,
            elements: flops(self.elements),
            launch: self.launch as f64 * NANO,
            ..Device::with_rates(link, self.memory as f64 * MEGA, matrices.f16)
        };
        device.attained.convolve = self.convolution as f64 * GIGA / matrices.f16;
        device.attained.attention = self.attention as f64 * GIGA / matrices.f16;
        device
    }

    /// Returns the MB/s to and from memory.
    pub(super) fn memory(&self) -> u64 {
        self.memory
    }

    fn preset(&self) -> Option<&'static str> {
        let mut presets = Preset::ALL.into_iter();
        presets.find(|(preset, _)| Self::of(&preset.device()) == *self).map(|(_, name)| name)
    }

    /// Returns every rate with its name.
    fn named(&mut self) -> [(&'static str, &mut [u64]); 8] {
        let Self { matrices, elements, convolution, attention, memory, link, latency, launch } = self;
        [
            ("matrices", matrices),
            ("elements", elements),
            ("convolution", std::slice::from_mut(convolution)),
            ("attention", std::slice::from_mut(attention)),
            ("memory", std::slice::from_mut(memory)),
            ("link", std::slice::from_mut(link)),
            ("latency", std::slice::from_mut(latency)),
            ("launch", std::slice::from_mut(launch)),
        ]
    }
}

impl fmt::Display for DeviceRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.preset() {
            return f.write_str(name);
        }
        let mut own = self.clone();
        let texts = own.named().map(|(name, rates)| {
            let rates: Vec<String> = rates.iter().map(u64::to_string).collect();
            format!("{name}:{}", rates.join("/"))
        });
        f.write_str(&texts.join("+"))
    }
}

impl FromStr for DeviceRates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(preset) = Preset::find(text) {
            return Ok(Self::of(&preset.device()));
        }
        let error = || format!("`{text}` is neither the name of a device nor its rates");
        let mut read = Self::of(&Device::assumed());
        let mut parts = text.split('+');
        for (name, rates) in read.named() {
            let part = parts.next().and_then(|part| part.strip_prefix(name)?.strip_prefix(':'));
            let mut numbers = part.ok_or_else(error)?.split('/');
            for rate in rates {
                let number = numbers.next().and_then(|number| number.parse().ok());
                let is_time = matches!(name, "latency" | "launch");
                *rate = number.filter(|&number| is_time || number > 0).ok_or_else(error)?;
            }
            if numbers.next().is_some() {
                return Err(error());
            }
        }
        if parts.next().is_some() { Err(error()) } else { Ok(read) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_prints_as_its_name() {
        for (preset, name) in Preset::ALL {
            let rates = DeviceRates::of(&preset.device());
            assert_eq!(rates.to_string().parse(), Ok(rates.clone()));
            assert_eq!(name.parse(), Ok(rates.clone()));
            assert!(Preset::find(&rates.to_string()).is_some(), "{rates}");
        }
    }

    #[test]
    fn other_rates_print_as_numbers_and_read_back() {
        let mut device = Preset::H200.device();
        device.launch = 3e-6;
        let rates = DeviceRates::of(&device);
        assert!(rates.to_string().ends_with("+launch:3000"), "{rates}");
        assert_eq!(rates.to_string().parse(), Ok(rates.clone()));
        assert_eq!(DeviceRates::of(&rates.device()), rates);
        for text in [
            "h201",
            "",
            "matrices:1",
            &format!("{rates}+launch:1"),
            &rates.to_string().replace(":3000", ":x"),
        ] {
            assert!(text.parse::<DeviceRates>().is_err(), "{text}");
        }
    }
}
