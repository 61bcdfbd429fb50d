//! `doctor --write`: this machine's device as a file for `inspect --target`, with measured rates.

use std::path::Path;

use cpu::rates::{self, Rates};
use cuda::check::part::CheckedDevice;
use cuda::check::process::Processes;
use cuda::check::rates::{Rate, Sizes};
use cuda::found;
use cuda::probe::{DeviceFacts, Probe};
use files::Replacement;
use files::memory::total;
use ir::Diagnostic;
use ir::machine::{Attained, Device, Preset};

use crate::cli::report::tell;
use crate::config::machine::device_text;
use crate::failure::Failure;

/// Measures the first GPU, or the processor if there is no GPU or the first is too old for kernels, and writes the device's description.
///
/// # Errors
/// A rate that cannot be measured; a file that cannot be written.
pub(super) fn write(path: &Path, probe: &Probe) -> Result<(), Failure> {
    let (device, preset) = match first_gpu(probe) {
        Some(facts) => gpu(facts)?,
        None => (processor()?, Preset::Cpu),
    };
    let comment = "Measured by `trainyard doctor --write`. Watts and the price are assumed.";
    let text = device_text(&device, preset, comment);
    Replacement::write(path, text.as_bytes()).map_err(|error| {
        Diagnostic::new(format!("cannot write the description: {error}")).at(path.display().to_string())
    })?;
    tell!("wrote the description of the {} to {}", device.name, path.display());
    Ok(())
}

/// The first GPU, if kernels run on it.
fn first_gpu(probe: &Probe) -> Option<&DeviceFacts> {
    let facts = probe.driver.as_ref().ok()?.devices.first()?;
    if let Some(refusal) = facts.refusal(0) {
        tell!("{refusal}");
        return None;
    }
    Some(facts)
}

/// The processor, with all threads.
fn processor() -> Result<Device, Failure> {
    tell!("measuring the processor; it takes some seconds");
    let measured = rates::measure(&rates::Sizes::default(), None)
        .map_err(|error| Diagnostic::new(format!("cannot measure the processor: {error}")))?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let name = processor_name().unwrap_or_else(|| "processor".into());
    Ok(described(&measured, format!("{name}, {threads} threads"), threads as u32))
}

fn described(measured: &Rates, name: String, threads: u32) -> Device {
    let preset = Preset::Cpu.device();
    let Rates { memory, matrices, elements, convolution, attention, launch } = *measured;
    let part = |rate: f64| (rate / matrices.f32).min(1.0);
    Device {
        name,
        multiprocessors: threads,
        memory: total().unwrap_or(preset.memory),
        memory_bandwidth: memory,
        matrices,
        elements,
        attained: Attained {
            memory: 1.0,
            multiply: 1.0,
            convolve: part(convolution),
            attention: part(attention),
        },
        launch,
        ..preset
    }
}

/// The name of the processor, where the system says it (Linux).
fn processor_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// GPU 0, whose peaks are those of the preset with its name.
fn gpu(facts: &DeviceFacts) -> Result<(Device, Preset), Failure> {
    let found = found::preset(&facts.name);
    let preset = found.unwrap_or(Preset::H100);
    if found.is_none() {
        tell!("the {} is no preset: the peaks of an H100 stand for its own", facts.name);
    }
    tell!("measuring GPU 0, {}; it takes a minute", facts.name);
    let processes = Processes::of_process(CheckedDevice::Gpu(0))
        .map_err(|error| Diagnostic::new(format!("cannot start a process to measure the GPU: {error}")))?;
    let measured = processes.rates(&Sizes::default(), &mut |_| {});
    let device = Device {
        name: facts.name.clone(),
        memory: facts.memory,
        multiprocessors: u32::try_from(facts.multiprocessors).unwrap_or(preset.device().multiprocessors),
        ..preset.device()
    };
    Ok((with_rates(device, &measured)?, preset))
}

/// The device, with its measured rates as fractions of its peaks.
fn with_rates(mut device: Device, measured: &[Rate]) -> Result<Device, Diagnostic> {
    let rate = |name: &str| {
        let found = measured.iter().find(|rate| rate.name == name);
        found.and_then(|rate| rate.value).ok_or_else(|| {
            let reason = found.and_then(|rate| rate.error.clone()).unwrap_or_default();
            Diagnostic::new(format!("{name} could not be measured: {reason}"))
                .note("`trainyard doctor --check` tests the GPU")
        })
    };
    // A copy reads and writes each byte.
    let memory = 2e9 * rate("copy_within_device")? / device.memory_bandwidth;
    let multiply = 1e12 * rate("matmul_bf16")? / device.matrices.bf16;
    // Forward has two products and backward five.
    let [forward, backward] = ["forward", "backward"].map(|part| rate(&format!("attention_bf16_d64_{part}")));
    let attention = 7.0 / (2.0 / forward? + 5.0 / backward?);
    let attention = 1e12 * attention / device.matrices.bf16;
    let [memory, multiply, attention] = [memory, multiply, attention].map(|part| part.min(1.0));
    device.attained = Attained { memory, multiply, convolve: multiply, attention };
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::machine::read_device;
    use ir::machine::FlopRates;

    fn measured(name: &str, value: Option<f64>) -> Rate {
        Rate {
            name: name.into(),
            sizes: String::new(),
            unit: "".into(),
            value,
            error: value.is_none().then(|| "no memory".into()),
        }
    }

    #[test]
    fn a_description_is_read_back_as_it_was_measured() {
        let rates = Rates {
            memory: 1.23e10,
            matrices: FlopRates { f64: 4.5e10, f32: 9.1e10, f16: 8.0e10, bf16: 7.9e10 },
            elements: FlopRates::uniform(1.0 / 3.0 * 1e10),
            convolution: 6.0e10,
            attention: 5.1e10,
            launch: 1.7e-7,
        };
        let device = described(&rates, "a \"quoted\" name".into(), 2);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("device.toml");
        std::fs::write(&path, device_text(&device, Preset::Cpu, "a test")).expect("it is written");
        assert_eq!(read_device(&path).map_err(|errors| format!("{errors:?}")), Ok(device));
    }

    #[test]
    fn a_gpu_attains_the_fractions_that_were_measured() {
        let mut rates = vec![
            measured("copy_within_device", Some(1340.0)),
            measured("matmul_bf16", Some(741.0)),
            measured("attention_bf16_d64_forward", Some(400.0)),
            measured("attention_bf16_d64_backward", Some(300.0)),
        ];
        let device = with_rates(Preset::H100.device(), &rates).expect("all is measured");
        assert!((device.memory_rate() - 2.68e12).abs() < 1e6);
        assert!((device.attained.multiply - 741.0 / 989.5).abs() < 1e-9);
        // 7 products in 2/400 + 5/300.
        assert!((device.attained.attention * 989.5 - 323.08).abs() < 0.01, "{}", device.attained.attention);
        rates[1] = measured("matmul_bf16", None);
        let error = with_rates(Preset::H100.device(), &rates).expect_err("a rate is missing").to_string();
        assert!(error.contains("matmul_bf16 could not be measured: no memory"), "{error}");
    }
}
