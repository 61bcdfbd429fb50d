//! The pass's options as text: `spmd(mesh=dp:2*tp:2, zero=1, sequence-parallel, shard=PATTERN:-*tp)`.

use super::{AxisSize, Spmd};
use crate::arguments::Arguments;

pub(super) fn parse(arguments: &mut Arguments) -> Result<Spmd, String> {
    let mesh = arguments.take("mesh").unwrap_or_default();
    let axis = |text: &str| {
        let (name, size) =
            text.split_once(':').ok_or_else(|| format!("`{text}` is not an axis; write an axis as dp:2"))?;
        let size = size.parse().map_err(|_| format!("`{size}` is not a number of devices"))?;
        Ok::<_, String>(AxisSize { name: name.into(), size })
    };
    let zero = arguments.value("zero", 0)?;
    if zero > 3 {
        return Err(format!("there is no ZeRO stage {zero}; the stages are 0, 1, 2 and 3"));
    }
    Ok(Spmd {
        mesh: mesh.split('*').filter(|text| !text.is_empty()).map(axis).collect::<Result<_, _>>()?,
        zero,
        sequence_parallel: arguments.flag("sequence-parallel"),
        shard: arguments.take_all("shard").iter().map(|text| text.parse()).collect::<Result<_, _>>()?,
    })
}

pub(super) fn print(options: &Spmd, arguments: &mut Arguments) {
    let axes: Vec<String> = options.mesh.iter().map(|axis| format!("{}:{}", axis.name, axis.size)).collect();
    arguments.push_unless(&String::new(), "mesh", &axes.join("*"));
    arguments.push_unless(&0, "zero", &options.zero);
    arguments.push_flag("sequence-parallel", options.sequence_parallel);
    options.shard.iter().for_each(|shard| arguments.push("shard", shard));
}
