//! Products by the tiles of AMX. A tile is a register of 16 rows of 64 bytes; `tdpbf16ps` adds the product of two tiles to a third.
//!
//! The operation is described in Intel's *Architecture Instruction Set Extensions Programming Reference*, chapter 3.

use super::{BLOCK, Sums, TILE, flushed, multiplied};

/// Returns whether this processor has AMX for bf16 and the system lets this process use it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) fn is_here() -> bool {
    use std::arch::x86_64::__cpuid_count;
    use std::sync::LazyLock;
    /// The request for a part of the processor's state, and the state of tiles (`asm/prctl.h`).
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_int = 18;
    static IS_HERE: LazyLock<bool> = LazyLock::new(|| {
        if __cpuid_count(0, 0).eax < 7 {
            return false;
        }
        // Leaf 7: AMX_BF16 and AMX_TILE.
        let [bf16, tiles] = [22, 24].map(|bit| __cpuid_count(7, 0).edx >> bit & 1 == 1);
        // SAFETY: the call only asks for a permission of this process, which threads share.
        #[allow(unsafe_code)]
        let granted =
            || unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 };
        bf16 && tiles && granted()
    });
    *IS_HERE
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(super) fn is_here() -> bool {
    false
}

/// The configuration of the tiles: all eight have 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Tiles {
    palette: u8,
    first_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static TILES: Tiles = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut tile = 0;
    while tile < 8 {
        (row_bytes[tile], rows[tile]) = (64, TILE as u8);
        tile += 1;
    }
    Tiles { palette: 1, first_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// Multiplies two panels, as [`super::MultiplyFn`] says. Tiles 0 to 3 have the sums, 4 and 5 the block of the left panel, 6 and 7 that of the
/// right one.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) fn multiply(left: &[u32], right: &[u32], sums: &mut Sums, add: bool) {
    assert!(is_here() && !left.is_empty() && left.len() == right.len() && left.len().is_multiple_of(BLOCK));
    let blocks = left.len() / BLOCK;
    // SAFETY: the processor has the instructions. Each round reads one block of each panel, of which there are `blocks`; the sums are four
    // tiles. The block leaves no state of tiles behind.
    #[allow(unsafe_code)]
    unsafe {
        std::arch::asm!(
            "ldtilecfg [{tiles}]",
            "test {add:e}, {add:e}",
            "jz 2f",
            "tileloadd tmm0, [{sums} + {row}*1]",
            "tileloadd tmm1, [{sums} + {row}*1 + 1024]",
            "tileloadd tmm2, [{sums} + {row}*1 + 2048]",
            "tileloadd tmm3, [{sums} + {row}*1 + 3072]",
            "jmp 3f",
            "2:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "3:",
            "tileloadd tmm4, [{left} + {row}*1]",
            "tileloadd tmm6, [{right} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{right} + {row}*1 + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{left} + {row}*1 + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {left}, 2048",
            "add {right}, 2048",
            "dec {blocks}",
            "jnz 3b",
            "tilestored [{sums} + {row}*1], tmm0",
            "tilestored [{sums} + {row}*1 + 1024], tmm1",
            "tilestored [{sums} + {row}*1 + 2048], tmm2",
            "tilestored [{sums} + {row}*1 + 3072], tmm3",
            "tilerelease",
            tiles = in(reg) &TILES,
            add = in(reg) u32::from(add),
            sums = in(reg) sums.as_mut_ptr(),
            row = in(reg) 64usize,
            left = inout(reg) left.as_ptr() => _,
            right = inout(reg) right.as_ptr() => _,
            blocks = inout(reg) blocks => _,
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            out("tmm3") _,
            out("tmm4") _,
            out("tmm5") _,
            out("tmm6") _,
            out("tmm7") _,
            options(nostack),
        );
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(super) fn multiply(left: &[u32], right: &[u32], sums: &mut Sums, add: bool) {
    emulate(left, right, sums, add);
}

/// Does the same as [`multiply`] on any processor: the first numbers of the 16 pairs of a tile are summed one after the other, and so are the
/// second ones. Then both are added, and then their sum is added to the result.
pub(super) fn emulate(left: &[u32], right: &[u32], sums: &mut Sums, add: bool) {
    super::emulate([left, right], sums, add, |sum, factors| {
        let of_tile = [0, 1].map(|i| factors.iter().fold(0.0, |sum, [a, b]| multiplied(a[i], b[i], sum)));
        flushed(flushed(sum) + flushed(of_tile[0] + of_tile[1]))
    });
}
