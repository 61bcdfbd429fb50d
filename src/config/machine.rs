//! Machines in TOML files: a device for `--target FILE.toml`, a cluster for `--cluster FILE.toml`.
//!
//! A file names the preset that it starts from, and replaces numbers of it. Numbers are in bytes, seconds, floating-point
//! operations, watts and dollars, without prefixes: `memory-bandwidth = 3.35e12`.

mod section;
mod written;

pub use written::device_text;

use std::path::Path;

use ir::Diagnostic;
use ir::machine::{Attained, Cluster, Device, DeviceKind, FlopRates, Link, Node, Preset};

use self::section::Section;
use super::text_file::TextFile;

/// Reads the description of one device.
///
/// # Errors
/// A file that cannot be read or is not TOML; else every unknown key, wrong type and impossible number, with their lines.
pub fn read_device(path: &Path) -> Result<Device, Vec<Diagnostic>> {
    read(&file(path)?, |preset| preset.device(), fill_device)
}

/// Reads the description of a cluster.
///
/// # Errors
/// As [`read_device`].
pub fn read_cluster(path: &Path) -> Result<Cluster, Vec<Diagnostic>> {
    read(&file(path)?, |preset| preset.cluster(1), fill_cluster)
}

fn file(path: &Path) -> Result<TextFile, Vec<Diagnostic>> {
    TextFile::read(path, "the description of the machine").map_err(|error| vec![error])
}

/// Reads a description: the machine of a preset, with the numbers of the file in place of the preset's.
fn read<T>(
    file: &TextFile,
    start: impl FnOnce(Preset) -> T,
    fill: impl FnOnce(&mut Section, &mut T),
) -> Result<T, Vec<Diagnostic>> {
    let table = file.table().map_err(|error| vec![error])?;
    let mut faults = vec![];
    let mut section = Section::new(file, table.get_ref(), &mut faults);
    let preset = section.required("preset", &Preset::ALL);
    // Without a preset the other keys are checked all the same.
    let mut machine = start(preset.unwrap_or(Preset::H100));
    fill(&mut section, &mut machine);
    section.finish();
    faults.sort_by_key(|(byte, _)| *byte);
    if faults.is_empty() { Ok(machine) } else { Err(faults.into_iter().map(|(_, error)| error).collect()) }
}

fn fill_cluster(section: &mut Section, cluster: &mut Cluster) {
    let Cluster { nodes, node, network } = cluster;
    section.count("nodes", nodes);
    section.table("node", |section| fill_node(section, node));
    section.table("network", |section| fill_link(section, network));
}

fn fill_node(section: &mut Section, node: &mut Node) {
    let Node { devices, device, host_link, host_memory, host_bandwidth, disk } = node;
    section.count("devices", devices);
    section.count("host-memory", host_memory);
    section.positive("host-bandwidth", host_bandwidth);
    section.table("device", |section| fill_device(section, device));
    section.table("host-link", |section| fill_link(section, host_link));
    section.table("disk", |section| fill_link(section, disk));
}

fn fill_device(section: &mut Section, device: &mut Device) {
    let Device { name, kind, multiprocessors, memory, memory_bandwidth, matrices, elements, .. } = device;
    section.text("name", name);
    section.choice("kind", &DeviceKind::ALL, kind);
    let mut count = u64::from(*multiprocessors);
    section.count("multiprocessors", &mut count);
    *multiprocessors = count.try_into().unwrap_or(u32::MAX);
    section.count("memory", memory);
    section.positive("memory-bandwidth", memory_bandwidth);
    section.table("matrices", |section| fill_rates(section, matrices));
    section.table("elements", |section| fill_rates(section, elements));
    let Device { attained, link, launch, watts, price_per_hour, .. } = device;
    let Attained { memory, multiply, convolve, attention } = attained;
    section.table("attained", |section| {
        section.fraction("memory", memory);
        section.fraction("multiply", multiply);
        section.fraction("convolve", convolve);
        section.fraction("attention", attention);
    });
    section.table("link", |section| fill_link(section, link));
    section.not_negative("launch", launch);
    section.not_negative("watts", watts);
    section.not_negative("price-per-hour", price_per_hour);
}

fn fill_rates(section: &mut Section, rates: &mut FlopRates) {
    let FlopRates { f64, f32, f16, bf16 } = rates;
    section.positive("f64", f64);
    section.positive("f32", f32);
    section.positive("f16", f16);
    section.positive("bf16", bf16);
}

fn fill_link(section: &mut Section, link: &mut Link) {
    let Link { bandwidth, attained, latency } = link;
    section.positive("bandwidth", bandwidth);
    section.fraction("attained", attained);
    section.not_negative("latency", latency);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(text: &str) -> Result<Device, String> {
        read(&TextFile::new("device.toml", text), |preset| preset.device(), fill_device).map_err(joined)
    }

    fn cluster(text: &str) -> Result<Cluster, String> {
        let file = TextFile::new("cluster.toml", text);
        read(&file, |preset| preset.cluster(1), fill_cluster).map_err(joined)
    }

    fn joined(errors: Vec<Diagnostic>) -> String {
        errors.iter().map(|error| format!("{error}\n")).collect()
    }

    #[test]
    fn a_file_replaces_numbers_of_its_preset() {
        let found = device(
            "preset = 'a100'\nname = 'mine'\nmemory = 40e9\nlaunch = 0\n[link]\nbandwidth = 32_000_000_000\n",
        );
        let mut expected = Preset::A100.device();
        expected.name = "mine".into();
        (expected.memory, expected.launch, expected.link.bandwidth) = (40_000_000_000, 0.0, 32e9);
        assert_eq!(found, Ok(expected));

        let found = cluster(
            "preset = 'h200'\nnodes = 4\n[node]\ndevices = 4\n[node.device.attained]\nmultiply = 0.7\n[network]\nlatency = 2e-6\n",
        );
        let mut expected = Preset::H200.cluster(4);
        (expected.node.devices, expected.node.device.attained.multiply) = (4, 0.7);
        expected.network.latency = 2e-6;
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn every_unknown_key_and_wrong_value_is_told_with_its_line_and_the_nearest_key() {
        let found = cluster(
            "preset = 'h300'\nnods = 4\nnodes = 0\n[node]\ndevices = 'eight'\n[node.device.atained]\nmultiply = 2\n\
             [node.device.link]\nattained = 1.5\nbandwith = 1\n[network]\nbandwidth = -1\nlatency = inf\n",
        );
        let expected = [
            "cluster.toml:1",
            "`preset`: `h300` is not known; there are h200, h100, a100, a100-40, v100, v100-32, v100-16, cpu",
            "cluster.toml:2",
            "unknown key `nods`",
            "the nearest known key is `nodes`",
            "cluster.toml:3",
            "`nodes` wants a whole number from 1, not the number 0",
            "cluster.toml:5",
            "`node.devices` wants a whole number from 1, not the string \"eight\"",
            "cluster.toml:6",
            "unknown key `node.device.atained`",
            "the nearest known key is `node.device.attained`",
            "cluster.toml:9",
            "`node.device.link.attained` wants a number above 0, at most 1, not the number 1.5",
            "unknown key `node.device.link.bandwith`",
            "`network.bandwidth` wants a finite number above 0, not the number -1",
            "`network.latency` wants a finite number, 0 or more, not the number inf",
        ];
        let found = found.expect_err("it is refused");
        for expected in expected {
            assert!(found.contains(expected), "no `{expected}` in\n{found}");
        }
    }

    #[test]
    fn a_description_names_its_preset() {
        let found = device("memory = 1\n[kind]\nx = 1\n").expect_err("it is refused");
        assert!(found.contains("there is no key `preset`"), "{found}");
        assert!(found.contains("`kind` wants a string, not a table"), "{found}");
        assert!(device("preset = h100\n").expect_err("it is refused").contains("not TOML"));
    }
}
