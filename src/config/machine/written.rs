//! A device as the text of a file for `--target`: all numbers of the preset are replaced.

use ir::machine::{Attained, Device, DeviceKind, FlopRates, Link, Preset};
use toml::{Table, Value};

/// The text of a file that [`read_device`](super::read_device) reads back to an equal device. `preset` is the preset that the
/// file names, and `comment` its first line.
pub fn device_text(device: &Device, preset: Preset, comment: &str) -> String {
    let Device { name, kind, multiprocessors, memory, memory_bandwidth, matrices, elements, .. } = device;
    let Device { attained, link, launch, watts, price_per_hour, .. } = device;
    let kind = DeviceKind::ALL.iter().find(|(known, _)| known == kind).map_or("", |(_, name)| name);
    let preset = Preset::ALL.iter().find(|(known, _)| *known == preset).map_or("", |(_, name)| name);
    let Attained { memory: streaming, multiply, convolve, attention } = *attained;
    let Link { bandwidth, attained, latency } = *link;
    let entries: [(&str, Value); 13] = [
        ("preset", preset.into()),
        ("name", name.as_str().into()),
        ("kind", kind.into()),
        ("multiprocessors", i64::from(*multiprocessors).into()),
        ("memory", memory.cast_signed().into()),
        ("memory-bandwidth", (*memory_bandwidth).into()),
        ("launch", (*launch).into()),
        ("watts", (*watts).into()),
        ("price-per-hour", (*price_per_hour).into()),
        ("matrices", rates(matrices)),
        ("elements", rates(elements)),
        (
            "attained",
            table([
                ("memory", streaming),
                ("multiply", multiply),
                ("convolve", convolve),
                ("attention", attention),
            ]),
        ),
        ("link", table([("bandwidth", bandwidth), ("attained", attained), ("latency", latency)])),
    ];
    let entries: Table = entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    format!("# {comment}\n{entries}")
}

fn rates(rates: &FlopRates) -> Value {
    let FlopRates { f64, f32, f16, bf16 } = *rates;
    table([("f64", f64), ("f32", f32), ("f16", f16), ("bf16", bf16)])
}

fn table<const N: usize>(numbers: [(&str, f64); N]) -> Value {
    Value::Table(numbers.into_iter().map(|(key, number)| (key.to_owned(), number.into())).collect())
}
