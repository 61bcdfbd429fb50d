//! `--target NAME[:key=value,…]|FILE.toml`: the device that a step is predicted on.

use std::path::PathBuf;
use std::str::FromStr;

use ir::Diagnostic;
use ir::machine::{Device, Preset};

use super::machine::read_device;
use super::value::{Spec, ValueError, positive, unknown_name};

/// A device that need not be in this machine.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetDevice {
    /// A preset, with measured rates in place of some of the preset's.
    Known(Box<Device>),
    /// The file that describes the device.
    Described(PathBuf),
}

impl TargetDevice {
    /// The device.
    ///
    /// # Errors
    /// As [`read_device`].
    pub fn device(&self) -> Result<Device, Vec<Diagnostic>> {
        match self {
            Self::Known(device) => Ok(Device::clone(device)),
            Self::Described(path) => read_device(path),
        }
    }
}

impl FromStr for TargetDevice {
    type Err = ValueError;

    /// `h200:bandwidth=4.2,multiply=740`: rates that were measured instead of those that are usual, in TB/s, TFLOP/s in
    /// half precision, GB/s, and µs. A text that ends with `.toml` is a file.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text.ends_with(".toml") {
            return Ok(Self::Described(text.into()));
        }
        let spec = Spec::parse(text)?;
        let Some(preset) = Preset::find(spec.name) else {
            let names = Preset::ALL.map(|(_, name)| name);
            let known = unknown_name("known device", spec.name, &names);
            return Err(ValueError::new(format!("{known}; a file that describes a device ends with .toml")));
        };
        let mut device = preset.device();
        let spec = spec.allow(&["bandwidth", "multiply", "convolve", "attention", "link", "launch"])?;
        let (bandwidth, half) = (device.memory_bandwidth / 1e12, device.matrices.f16 / 1e12);
        let (attained, link) = (&mut device.attained, &mut device.link);
        let rates = [
            ("bandwidth", &mut attained.memory, bandwidth),
            ("multiply", &mut attained.multiply, half),
            ("convolve", &mut attained.convolve, half),
            ("attention", &mut attained.attention, half),
            ("link", &mut link.attained, link.bandwidth / 1e9),
            ("launch", &mut device.launch, 1e6),
        ];
        for (key, share, peak) in rates {
            let rate = spec.take(key, *share * peak, positive)?;
            if key != "launch" && rate > peak {
                let name = &device.name;
                let message =
                    format!("{key}: {rate} is above {peak}, the peak in the data sheet of the {name}");
                return Err(ValueError::new(message));
            }
            *share = rate / peak;
        }
        Ok(Self::Known(Box::new(device)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_rates_take_the_place_of_the_usual_ones() {
        let target: TargetDevice = "h100:bandwidth=3.0,launch=2".parse().expect("it is a device");
        let device = target.device().expect("it is known");
        assert!((device.memory_rate() - 3.0e12).abs() < 1e6);
        assert!((device.launch - 2e-6).abs() < 1e-12);
        assert_eq!(device.attained.multiply, Preset::H100.device().attained.multiply);
    }

    #[test]
    fn what_no_device_has_is_refused() {
        let error = |text: &str| text.parse::<TargetDevice>().expect_err("it is refused").to_string();
        assert_eq!(
            error("b200"),
            "`b200` is not a known device; there are h200, h100, a100, a100-40, v100, v100-32, v100-16, cpu; \
             a file that describes a device ends with .toml"
        );
        assert_eq!(
            error("h200:speed=1"),
            "`h200` has no setting `speed`; it has bandwidth, multiply, convolve, attention, link, launch"
        );
        assert_eq!(
            error("h200:bandwidth=9"),
            "bandwidth: 9 is above 4.8, the peak in the data sheet of the H200 SXM"
        );
        assert_eq!(error("a100:launch=0"), "launch: `0` is not a finite number above 0");
    }

    #[test]
    fn a_file_is_read_when_the_device_is_asked_for() {
        let target: TargetDevice = "no/such/device.toml".parse().expect("it is a file");
        let errors = target.device().expect_err("there is no such file");
        assert!(errors[0].message.contains("cannot read the description of the machine"), "{errors:?}");
    }
}
