//! The limits of a launch, which are the same for every GPU that is supported. CUDA refuses a launch beyond them.

use super::nvrtc::Resources;
use super::program::Launch;

/// The most blocks along x, y and z.
const GRID: [u32; 3] = [i32::MAX.cast_unsigned(), 65_535, 65_535];

/// The most threads of a block.
const BLOCK: u32 = 1024;

/// The most bytes of parameters. Newer drivers take more.
const PARAMETERS: usize = 4096;

/// The most bytes of shared memory that a kernel may declare.
pub const SHARED: u32 = 48 * 1024;

/// The unit in which a device gives registers to a warp.
const REGISTER_UNIT: u32 = 256;

/// The registers of a multiprocessor, which are also the most that a block may have.
pub const REGISTERS: u32 = 65_536;

/// Returns a grid with these numbers of blocks.
///
/// # Errors
/// The reason why CUDA refuses the grid.
pub(super) fn grid(blocks: [usize; 3]) -> Result<[u32; 3], String> {
    for ((count, most), axis) in blocks.into_iter().zip(GRID).zip(["x", "y", "z"]) {
        if !(1..=most as usize).contains(&count) {
            return Err(format!("it has {count} blocks along {axis}, and CUDA allows 1 to {most}"));
        }
    }
    Ok(blocks.map(|count| count as u32))
}

impl Launch {
    /// Returns the reason why CUDA refuses the launch, if it does. [`Resources::refusal`] checks the sizes of the kernel.
    pub fn refusal(&self) -> Option<String> {
        if let Err(refusal) = grid(self.grid.map(|count| count as usize)) {
            return Some(refusal);
        }
        if !(1..=BLOCK).contains(&self.block) {
            return Some(format!("its blocks have {} threads, and CUDA allows 1 to {BLOCK}", self.block));
        }
        let bytes = 8 * self.arguments.len();
        (bytes > PARAMETERS)
            .then(|| format!("it has {bytes} bytes of parameters, and CUDA allows {PARAMETERS}"))
    }
}

impl Resources {
    /// Returns the registers of a block with this number of threads, as a device allocates them.
    pub fn registers_of_block(&self, threads: u32) -> u32 {
        threads.div_ceil(32) * (32 * self.registers).next_multiple_of(REGISTER_UNIT)
    }

    /// Returns the reason why CUDA refuses to launch the kernel with blocks of this number of threads, if it does.
    pub fn refusal(&self, threads: u32) -> Option<String> {
        let registers = self.registers_of_block(threads);
        if registers > REGISTERS {
            return Some(format!("a block needs {registers} registers, and CUDA allows {REGISTERS}"));
        }
        let shared = self.shared;
        (shared > SHARED).then(|| format!("it has {shared} bytes of shared memory, and CUDA allows {SHARED}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Argument;

    #[test]
    fn launches_beyond_limits_are_refused() {
        let sound = Launch { kernel: 0, grid: [1; 3], block: 32, arguments: vec![] };
        assert_eq!(sound.refusal(), None);
        let grid = |grid| Launch { grid, ..sound.clone() };
        let block = |block| Launch { block, ..sound.clone() };
        let arguments = vec![Argument::Number(0); 513];
        let beyond = [
            (grid([1 << 31, 1, 1]), "2147483648 blocks along x, and CUDA allows 1 to 2147483647"),
            (grid([1, 65_536, 1]), "65536 blocks along y, and CUDA allows 1 to 65535"),
            (grid([1, 1, 65_536]), "65536 blocks along z, and CUDA allows 1 to 65535"),
            (grid([0, 1, 1]), "0 blocks along x"),
            (block(1056), "1056 threads, and CUDA allows 1 to 1024"),
            (block(0), "0 threads"),
            (Launch { arguments, ..sound.clone() }, "4104 bytes of parameters"),
        ];
        for (launch, part) in beyond {
            let refusal = launch.refusal().unwrap_or_default();
            assert!(refusal.contains(part), "{part} is not in {refusal}");
        }
    }

    #[test]
    fn kernels_beyond_limits_are_refused() {
        let of = |registers, shared| Resources { registers, shared, ..Resources::default() };
        assert_eq!(of(64, SHARED).refusal(1024), None);
        // A warp with 65 registers for each thread takes as many as with 72.
        assert_eq!(of(65, 0).registers_of_block(64), 2 * 32 * 72);
        let text = of(65, 0).refusal(1024).unwrap_or_default();
        assert!(text.contains("73728 registers, and CUDA allows 65536"), "{text}");
        assert!(of(8, SHARED + 1).refusal(32).is_some_and(|text| text.contains("49153 bytes of shared")));
    }
}
