//! Loads and stores in the text of PTX and of machine code, as NVRTC and nvdisasm write them.

use std::collections::BTreeMap;

/// Whether memory is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Load,
    /// A store to global memory, or to a memory that the address determines.
    Store,
    SharedStore,
}

/// A load or a store of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access<'a> {
    pub(super) kind: Kind,
    /// The bytes that a thread reads or writes.
    pub(super) bytes: u32,
    /// The text of the address without its offset, and the offset in bytes. A claim has no address.
    pub(super) base: &'a str,
    pub(super) offset: i64,
}

/// The accesses of each kernel of a text. A line may begin a kernel or have an access.
pub(super) fn by_kernel<'a>(
    text: &'a str,
    begins: impl Fn(&'a str) -> Option<&'a str>,
    access: impl Fn(&'a str) -> Option<Access<'a>>,
) -> BTreeMap<&'a str, Vec<Access<'a>>> {
    let mut all: BTreeMap<&str, Vec<Access<'_>>> = BTreeMap::new();
    let mut kernel = None;
    for line in text.lines().map(str::trim) {
        kernel = begins(line).or(kernel);
        if let (Some(kernel), Some(access)) = (kernel, access(line)) {
            all.entry(kernel).or_default().push(access);
        }
    }
    all
}

/// The kernel that a line of PTX begins.
pub(super) fn entry(line: &str) -> Option<&str> {
    line.split_once(".entry ")?.1.split('(').next()
}

/// The pack that a comment in PTX claims: `// STORE 16`.
pub(super) fn claimed(line: &str) -> Option<Access<'_>> {
    let (kind, bytes) = line.strip_prefix("// ")?.split_once(' ')?;
    let kind = match kind {
        "LOAD" => Kind::Load,
        "STORE" => Kind::Store,
        "STORE_SHARED" => Kind::SharedStore,
        _ => return None,
    };
    Some(Access { kind, bytes: bytes.parse().ok()?, base: "", offset: 0 })
}

/// The access of a line of PTX: `@%p1 st.global.v4.b32 [%rd1+16], …`.
pub(super) fn in_ptx(line: &str) -> Option<Access<'_>> {
    let mut parts = line.split_whitespace().find(|word| !word.starts_with('@'))?.split('.');
    let name = parts.next()?;
    let parts: Vec<&str> = parts.collect();
    let kind = match name {
        "ld" => Kind::Load,
        "st" if parts.contains(&"shared") => Kind::SharedStore,
        "st" => Kind::Store,
        _ => return None,
    };
    if parts.contains(&"param") {
        return None;
    }
    let elements = if parts.contains(&"v4") { 4 } else { 1 + u32::from(parts.contains(&"v2")) };
    let bits: u32 = parts.last()?.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse().ok()?;
    let (base, offset) = address(line);
    Some(Access { kind, bytes: elements * bits / 8, base, offset })
}

/// The kernel whose machine code a line begins: `.text.NAME:`.
pub(super) fn section(line: &str) -> Option<&str> {
    line.strip_prefix(".text.")?.strip_suffix(':')
}

/// The access of a line of machine code: `/*0170*/ @P0 STG.E.128 desc[UR4][R2.64+0x10], R4 ;`.
pub(super) fn in_machine_code(line: &str) -> Option<Access<'_>> {
    let mut words = line.strip_prefix("/*")?.split_whitespace().skip(1);
    let mut parts = words.find(|word| !word.starts_with('@'))?.split('.');
    let kind = match parts.next()? {
        "LD" | "LDG" | "LDS" => Kind::Load,
        "ST" | "STG" => Kind::Store,
        "STS" => Kind::SharedStore,
        _ => return None,
    };
    let width = |part: &str| match part {
        "128" => Some(16),
        "64" => Some(8),
        "U16" | "S16" => Some(2),
        "U8" | "S8" => Some(1),
        _ => None,
    };
    let (base, offset) = address(line);
    Some(Access { kind, bytes: parts.find_map(width).unwrap_or(4), base, offset })
}

/// The address between the last brackets, without its offset, and the offset: `[%rd1+-8]`, `[R2.64+0x10]`.
fn address(line: &str) -> (&str, i64) {
    let Some((_, address)) = line.rsplit_once('[') else { return ("", 0) };
    let address = address.split(']').next().unwrap_or_default();
    let Some((base, offset)) = address.rsplit_once('+') else { return (address, 0) };
    let (sign, digits) = offset.strip_prefix('-').map_or((1, offset), |digits| (-1, digits));
    let number = match digits.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    number.map_or((address, 0), |number| (base, sign * number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(kind: Kind, bytes: u32, base: &str, offset: i64) -> Option<Access<'_>> {
        Some(Access { kind, bytes, base, offset })
    }

    #[test]
    fn a_comment_claims_a_pack() {
        assert_eq!(claimed("// STORE 16"), access(Kind::Store, 16, "", 0));
        assert_eq!(claimed("// STORE_SHARED 8"), access(Kind::SharedStore, 8, "", 0));
        assert_eq!(claimed("// begin inline asm"), None);
        assert_eq!(claimed("//"), None);
    }

    #[test]
    fn accesses_of_ptx_are_read() {
        let of_vector = in_ptx("st.global.v4.b32 [%rd1+-4096], {%r1, %r2, %r3, %r4};");
        assert_eq!(of_vector, access(Kind::Store, 16, "%rd1", -4096));
        let of_halves = in_ptx("@%p1 ld.global.nc.v2.u16 \t{%rs1, %rs2}, [%rd1+4];");
        assert_eq!(of_halves, access(Kind::Load, 4, "%rd1", 4));
        assert_eq!(in_ptx("ld.shared.f64 \t%fd1, [%r1];"), access(Kind::Load, 8, "%r1", 0));
        assert_eq!(in_ptx("st.shared.v2.b32 [%r1+8], {%r2, %r3};"), access(Kind::SharedStore, 8, "%r1", 8));
        assert_eq!(in_ptx("ld.param.u64 \t%rd1, [k_param_0];"), None);
        assert_eq!(in_ptx("add.s32 %r1, %r2, 4;"), None);
    }

    #[test]
    fn accesses_of_machine_code_are_read() {
        let store = in_machine_code("/*0170*/                   STG.E.128 desc[UR4][R2.64], R4 ;");
        assert_eq!(store, access(Kind::Store, 16, "R2.64", 0));
        let load = in_machine_code("/*0180*/              @!P0 LDG.E.U16.CONSTANT R4, [R2.64+0x1e] ;");
        assert_eq!(load, access(Kind::Load, 2, "R2.64", 30));
        let shared = in_machine_code("/*0190*/                   LDS R4, [R2+-0x64] ;");
        assert_eq!(shared, access(Kind::Load, 4, "R2", -100));
        assert_eq!(in_machine_code("/*01a0*/       LDGSTS.E.BYPASS.128 [R2], [R4.64] ;"), None);
        assert_eq!(in_machine_code(".L_x_1:"), None);
    }

    #[test]
    fn accesses_belong_to_the_kernel_before_them() {
        let text = ".text.one:\n /*00*/ LDG.E R1, [R2.64] ;\n.L_x_1:\n /*10*/ STG.E [R2.64], R1 ;\n.text.two:\n /*00*/ EXIT ;\n";
        let all = by_kernel(text, section, in_machine_code);
        assert_eq!(all.keys().copied().collect::<Vec<_>>(), ["one"]);
        assert_eq!(all["one"].len(), 2);
    }
}
