//! Machines in TOML files: a device for `--target FILE.toml`, a cluster for `--cluster FILE.toml`.
//!
//! A file names the preset that it starts from, and replaces numbers of it. Numbers are in bytes, seconds, floating-point
//! operations, watts and dollars, without prefixes: `memory-bandwidth = 3.35e12`.

mod section;

use std::path::Path;

use ir::Diagnostic;
use ir::machine::{Attained, Cluster, Device, DeviceKind, FlopRates, Link, Node, Preset};
use toml::Table;

use self::section::Section;
use super::text_file::TextFile;

/// Reads the description of one device.
///
/// # Errors
/// A file that cannot be read or is not TOML; else every unknown key, wrong type and impossible number, with their lines.
pub fn read_device(path: &Path) -> Result<Device, Vec<Diagnostic>> {
    read(&file(path)?, |preset| preset.device(), |section, device| visit_device(section, device))
}

/// Reads the description of a cluster.
///
/// # Errors
/// As [`read_device`].
pub fn read_cluster(path: &Path) -> Result<Cluster, Vec<Diagnostic>> {
    read(&file(path)?, |preset| preset.cluster(1), |section, cluster| visit_cluster(section, cluster))
}

fn file(path: &Path) -> Result<TextFile, Vec<Diagnostic>> {
    TextFile::read(path, "the description of the machine").map_err(|error| vec![error])
}

/// Reads a description: the machine of a preset, with the numbers of the file in place of the preset's.
fn read<T>(
    file: &TextFile,
    start: impl FnOnce(Preset) -> T,
    visit: impl FnOnce(&mut Section, &mut T),
) -> Result<T, Vec<Diagnostic>> {
    let table = file.table().map_err(|error| vec![error])?;
    let mut section = Section::new(file, table.get_ref());
    let preset = section.required("preset", &Preset::ALL);
    // Without a preset the other keys are checked all the same.
    let mut machine = start(preset.unwrap_or(Preset::H100));
    visit(&mut section, &mut machine);
    let mut faults = section.finish();
    faults.sort_by_key(|(byte, _)| *byte);
    if faults.is_empty() { Ok(machine) } else { Err(faults.into_iter().map(|(_, error)| error).collect()) }
}

/// The text of a file that [`read_device`] reads back to an equal device. All numbers of the preset that the file names are replaced;
/// `comment` is its first line.
pub fn device_text(device: &Device, mut preset: Preset, comment: &str) -> String {
    let mut table = Table::new();
    table.choice("preset", &Preset::ALL, &mut preset);
    visit_device(&mut table, &mut device.clone());
    format!("# {comment}\n{table}")
}

/// A visitor of the fields of a machine: [`Section`] reads them from a table of a file, and [`Table`] is such a table in the making.
trait Fields {
    /// A text.
    fn text(&mut self, key: &'static str, text: &mut String);
    /// One of several names with their values.
    fn choice<T: Copy + PartialEq>(&mut self, key: &'static str, choices: &[(T, &str)], chosen: &mut T);
    /// A whole number from 1.
    fn count(&mut self, key: &'static str, count: &mut u64);
    /// A number in a range.
    fn number(&mut self, key: &'static str, number: &mut f64, range: Range);
    /// A table of further fields.
    fn table(&mut self, key: &'static str, visit: impl FnOnce(&mut Self));
}

/// A range of numbers: its description, and whether a number is in it.
type Range = (&'static str, fn(f64) -> bool);

const POSITIVE: Range = ("a finite number above 0", |number| number.is_finite() && number > 0.0);
const NOT_NEGATIVE: Range = ("a finite number, 0 or more", |number| number.is_finite() && number >= 0.0);
const FRACTION: Range = ("a number above 0, at most 1", |number| number > 0.0 && number <= 1.0);

fn visit_cluster(fields: &mut impl Fields, cluster: &mut Cluster) {
    let Cluster { nodes, node, network } = cluster;
    fields.count("nodes", nodes);
    fields.table("node", |fields| visit_node(fields, node));
    fields.table("network", |fields| visit_link(fields, network));
}

fn visit_node(fields: &mut impl Fields, node: &mut Node) {
    let Node { devices, device, host_link, host_memory, host_bandwidth, disk } = node;
    fields.count("devices", devices);
    fields.count("host-memory", host_memory);
    fields.number("host-bandwidth", host_bandwidth, POSITIVE);
    fields.table("device", |fields| visit_device(fields, device));
    fields.table("host-link", |fields| visit_link(fields, host_link));
    fields.table("disk", |fields| visit_link(fields, disk));
}

fn visit_device(fields: &mut impl Fields, device: &mut Device) {
    let Device { name, kind, multiprocessors, memory, memory_bandwidth, matrices, elements, .. } = device;
    fields.text("name", name);
    fields.choice("kind", &DeviceKind::ALL, kind);
    let mut count = u64::from(*multiprocessors);
    fields.count("multiprocessors", &mut count);
    *multiprocessors = count.try_into().unwrap_or(u32::MAX);
    fields.count("memory", memory);
    fields.number("memory-bandwidth", memory_bandwidth, POSITIVE);
    fields.table("matrices", |fields| visit_rates(fields, matrices));
    fields.table("elements", |fields| visit_rates(fields, elements));
    let Device { attained, link, launch, watts, price_per_hour, .. } = device;
    let Attained { memory, multiply, convolve, attention } = attained;
    fields.table("attained", |fields| {
        fields.number("memory", memory, FRACTION);
        fields.number("multiply", multiply, FRACTION);
        fields.number("convolve", convolve, FRACTION);
        fields.number("attention", attention, FRACTION);
    });
    fields.table("link", |fields| visit_link(fields, link));
    fields.number("launch", launch, NOT_NEGATIVE);
    fields.number("watts", watts, NOT_NEGATIVE);
    fields.number("price-per-hour", price_per_hour, NOT_NEGATIVE);
}

fn visit_rates(fields: &mut impl Fields, rates: &mut FlopRates) {
    let FlopRates { f64, f32, f16, bf16 } = rates;
    for (key, rate) in [("f64", f64), ("f32", f32), ("f16", f16), ("bf16", bf16)] {
        fields.number(key, rate, POSITIVE);
    }
}

fn visit_link(fields: &mut impl Fields, link: &mut Link) {
    let Link { bandwidth, attained, latency } = link;
    fields.number("bandwidth", bandwidth, POSITIVE);
    fields.number("attained", attained, FRACTION);
    fields.number("latency", latency, NOT_NEGATIVE);
}

impl Fields for Table {
    fn text(&mut self, key: &'static str, text: &mut String) {
        self.insert(key.to_owned(), text.as_str().into());
    }

    fn choice<T: Copy + PartialEq>(&mut self, key: &'static str, choices: &[(T, &str)], chosen: &mut T) {
        let name = choices.iter().find(|(choice, _)| choice == chosen).map_or("", |(_, name)| name);
        self.insert(key.to_owned(), name.into());
    }

    fn count(&mut self, key: &'static str, count: &mut u64) {
        self.insert(key.to_owned(), count.cast_signed().into());
    }

    fn number(&mut self, key: &'static str, number: &mut f64, _: Range) {
        self.insert(key.to_owned(), (*number).into());
    }

    fn table(&mut self, key: &'static str, visit: impl FnOnce(&mut Self)) {
        let mut table = Self::new();
        visit(&mut table);
        self.insert(key.to_owned(), table.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(text: &str) -> Result<Device, String> {
        read(
            &TextFile::new("device.toml", text),
            |preset| preset.device(),
            |section, device| visit_device(section, device),
        )
        .map_err(joined)
    }

    fn cluster(text: &str) -> Result<Cluster, String> {
        let file = TextFile::new("cluster.toml", text);
        read(&file, |preset| preset.cluster(1), |section, cluster| visit_cluster(section, cluster))
            .map_err(joined)
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
    fn a_number_that_no_toml_integer_holds_is_refused() {
        let found =
            device("preset = 'h200'\nmemory-bandwidth = 10000000000000000000000\n").expect_err("too large");
        assert!(found.contains("`memory-bandwidth` wants a finite number above 0"), "{found}");
        let found = device("preset = 'h200'\nmemory-bandwidth = 0x1000\n").expect("a number");
        assert_eq!(found.memory_bandwidth, 4096.0);
    }

    #[test]
    fn a_description_names_its_preset() {
        let found = device("memory = 1\n[kind]\nx = 1\n").expect_err("it is refused");
        assert!(found.contains("there is no key `preset`"), "{found}");
        assert!(found.contains("`kind` wants a string, not a table"), "{found}");
        assert!(device("preset = h100\n").expect_err("it is refused").contains("not TOML"));
    }
}
