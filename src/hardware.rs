//! The choice of the device: from `--device`, and from the hardware of the machine.

use crate::compiler::On;
use crate::config::device::MOST_THREADS;
use crate::config::{DeviceChoice, Parallel};
use crate::targets;
use comm::launcher::Launched;
use ir::interp::MOST_RANKS;
use ir::machine::{Device, Preset};
use ir::{DType, Diagnostic};
use program::{Multiprocessors, Target};
use ranks::platform::{Found, Wanted};

/// A device that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The kind of the device.
    pub target: Target,
    /// The size of the GPU, by which kernels choose their number of blocks; of several GPUs, the size of the smallest.
    pub multiprocessors: Multiprocessors,
    /// The description for people, which also names a GPU that no flag asks for.
    pub described: String,
    /// The preset that describes the device, if it is known.
    pub preset: Option<Preset>,
}

/// The size of a device, as processes tell it to each other: the multiprocessors, and the name of the preset.
pub type Size = (u32, Option<String>);

impl Chosen {
    /// The size of the device.
    pub fn size(&self) -> Size {
        let name = |(preset, name): (Preset, &str)| (Some(preset) == self.preset).then(|| name.to_owned());
        (self.multiprocessors.0, Preset::ALL.into_iter().find_map(name))
    }

    /// The device with the size of the smallest of these: all ranks run one program, which has to fit each of their devices.
    #[must_use]
    pub fn with_smallest(self, sizes: &[Size]) -> Self {
        let multiprocessors = sizes.iter().map(|(count, _)| *count).min();
        let multiprocessors = multiprocessors.map_or(self.multiprocessors, Multiprocessors);
        let presets: Option<Vec<Preset>> =
            sizes.iter().map(|(_, name)| name.as_deref().and_then(Preset::find)).collect();
        let preset = presets.and_then(|all| all.into_iter().min_by_key(|preset| preset.device().memory));
        Self { multiprocessors, preset, ..self }
    }

    /// The device of a job.
    pub fn on(&self) -> On {
        let Self { target, multiprocessors, preset, .. } = *self;
        On { target, multiprocessors, device: self.device(), is_known: preset.is_some() }
    }

    /// The device that programs are priced for.
    pub fn device(&self) -> Device {
        self.preset.map_or_else(Device::assumed, Preset::device)
    }
}

/// Finds the device that a program is compiled for. Its step computes in `dtype`, and `runs` says whether it also runs there. `launched` is the place of this
/// process, if it is one rank of several: then it needs one device, and not one for each rank.
///
/// # Errors
/// A device that was asked for cannot be used: the error names the reason. A mesh has more ranks than the processor runs.
pub fn choose(
    choice: DeviceChoice,
    parallel: &Parallel,
    dtype: DType,
    runs: bool,
    launched: Option<&Launched>,
) -> Result<Chosen, Diagnostic> {
    let target = choice.target();
    if runs && target.is_host() {
        fits_processor(parallel)?;
    }
    let mesh = parallel.mesh.as_ref().map(|mesh| format!("--mesh {mesh}"));
    let (is_one_rank, local_rank) = (launched.is_some(), launched.and_then(|launched| launched.local_rank));
    let wanted = Wanted { mesh, ranks: parallel.ranks(), is_one_rank, local_rank };
    let Found { multiprocessors, described, preset } = targets::backend(target).find(&wanted)?;
    let offers = targets::BACKENDS.iter().filter(|_| choice == DeviceChoice::Auto);
    let described: Vec<_> =
        [described].into_iter().chain(offers.filter_map(|other| other.offer(dtype))).collect();
    Ok(Chosen { target, multiprocessors, described: described.join("; "), preset })
}

/// Refuses a mesh of more ranks than the processor runs: each takes memory and threads of its own.
pub fn fits_processor(parallel: &Parallel) -> Result<(), Diagnostic> {
    let (ranks, Some(mesh)) = (parallel.ranks(), &parallel.mesh) else { return Ok(()) };
    if ranks <= MOST_RANKS {
        return Ok(());
    }
    let message = format!(
        "--mesh {mesh} has {ranks} ranks; the processor runs at most {MOST_RANKS} ranks, each in its own \
         thread"
    );
    Err(Diagnostic::new(message).note("use a smaller mesh; --device cuda runs each rank on its own GPU"))
}

/// The variables that set the number of threads of rayon, which draws weights and cuts texts into tokens. Rayon reads the second, of its
/// first versions, if the first has no number.
const RAYON_THREADS: [&str; 2] = ["RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS"];

/// Refuses an environment that asks for more threads than a flag may.
///
/// # Errors
/// The variable, its value and the largest number that is taken.
pub fn check_environment() -> Result<(), Diagnostic> {
    let asked = RAYON_THREADS.iter().filter_map(|name| Some((name, std::env::var(name).ok()?)));
    let is_too_many =
        |value: &str| value.trim().parse::<u128>().is_ok_and(|count| count > MOST_THREADS.into());
    let mut refused = asked.filter(|(_, value)| is_too_many(value));
    refused.next().map_or(Ok(()), |(name, value)| {
        let message = format!("{name}={value} asks for more than {MOST_THREADS} threads");
        Err(Diagnostic::new(message).note("unset the variable: the default is one thread per core"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::machine::DeviceKind;

    #[test]
    fn the_smallest_device_of_all_ranks_decides() {
        let of = |multiprocessors, preset| Chosen {
            target: targets::of(DeviceKind::Gpu),
            multiprocessors: Multiprocessors(multiprocessors),
            described: String::new(),
            preset,
        };
        let among = |own: &Chosen, others: &[&Chosen]| {
            let sizes: Vec<Size> = others.iter().map(|other| other.size()).collect();
            own.clone().with_smallest(&sizes)
        };
        let [large, small] = [of(132, Some(Preset::H200)), of(108, Some(Preset::A100With40))];
        for own in [&large, &small] {
            assert_eq!(among(own, &[&large, &small]), small);
            assert_eq!(
                among(own, &[&large, &of(114, None)]),
                of(114, None),
                "the memory of one is not known"
            );
        }
        assert_eq!(among(&large, &[&large]), large);
    }
}
