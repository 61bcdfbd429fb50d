//! `--target NAME[:key=value,…]`: the device that a roofline is of.

use std::fmt;
use std::str::FromStr;

use runtime::cuda::roofline::Accelerator;

use super::value::{Spec, ValueError, positive, unknown_name};

/// A device that need not be here, with what it attains.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetDevice(pub Accelerator);

impl FromStr for TargetDevice {
    type Err = ValueError;

    /// `h200:bandwidth=4.2,multiply=740`: rates that were measured instead of those that are usual, in TB/s, TFLOP/s in
    /// half precision, GB/s, and µs.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let spec = Spec::parse(text)?;
        let names = Accelerator::ALL.map(|(_, name)| name);
        let Some((mut device, _)) = Accelerator::ALL.into_iter().find(|(_, name)| *name == spec.name) else {
            return Err(unknown_name("known device", spec.name, &names));
        };
        let spec = spec.allow(&["bandwidth", "multiply", "attention", "link", "launch"])?;
        let (bandwidth, half, link) = (device.bandwidth / 1e12, device.half / 1e12, device.link / 1e9);
        let attained = &mut device.attained;
        let rates = [
            ("bandwidth", &mut attained.bandwidth, bandwidth),
            ("multiply", &mut attained.multiply, half),
            ("attention", &mut attained.attention, half),
            ("link", &mut attained.link, link),
            ("launch", &mut attained.launch, 1e6),
        ];
        for (key, share, peak) in rates {
            let rate = spec.take(key, *share * peak, positive)?;
            if key != "launch" && rate > peak {
                let what = format!(
                    "{key}: {rate} is above {peak}, the peak in the data sheet of the {}",
                    device.name
                );
                return Err(ValueError::new(what));
            }
            *share = rate / peak;
        }
        Ok(Self(device))
    }
}

impl fmt::Display for TargetDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_rates_take_the_place_of_the_usual_ones() {
        let device: TargetDevice = "h100:bandwidth=3.0,launch=2".parse().expect("it is a device");
        assert!((device.0.streamed() - 3.0e12).abs() < 1e6);
        assert!((device.0.attained.launch - 2e-6).abs() < 1e-12);
        assert_eq!(device.0.attained.multiply, Accelerator::H100.attained.multiply);
    }

    #[test]
    fn what_no_device_has_is_refused() {
        let error = |text: &str| text.parse::<TargetDevice>().expect_err("it is refused").to_string();
        assert_eq!(error("v100"), "`v100` is not a known device; there are h200, h100, a100");
        assert_eq!(
            error("h200:speed=1"),
            "`h200` has no setting `speed`; it has bandwidth, multiply, attention, link, launch"
        );
        assert_eq!(
            error("h200:bandwidth=9"),
            "bandwidth: 9 is above 4.8, the peak in the data sheet of the H200 SXM"
        );
        assert_eq!(error("a100:launch=0"), "launch: `0` is not a finite number above 0");
    }
}
