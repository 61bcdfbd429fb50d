//! Writes kernels: the names of types and layouts in CUDA C++, and the function around a body.

use crate::limits;
use crate::program::{Argument, File, Kernel, Launch, ValueStart};
use ir::{DType, Diagnostic};
use program::layout::Layout;
use program::{Instruction, View};
use std::collections::BTreeMap;
use std::fmt::Write;

macro_rules! files {
    ($($constant:ident $name:literal $(after $($first:ident)+)?;)*) => {
        $(
            #[doc = concat!("`kernels/", $name, "`.")]
            pub(crate) static $constant: File = File {
                name: $name,
                text: include_str!(concat!("../kernels/", $name)),
                after: &[$($(&$first),+)?],
            };
        )*
    };
}

files! {
    PRELUDE "prelude.cuh";
    ATTENTION "attention.cuh";
    ATTENTION_GRAD "attention_grad.cuh" after ATTENTION;
    ATTENTION_MMA "attention_mma.cuh" after ATTENTION MMA;
    ATTENTION_MMA_GRAD "attention_mma_grad.cuh" after ATTENTION MMA ATTENTION_MMA;
    BATCH_NORM "batch_norm.cuh";
    COMPRESSION "compression.cuh";
    CONTRACT "contract.cuh";
    COPY "copy.cuh";
    DET "det.cuh";
    DROPOUT "dropout.cuh";
    ELEMENTWISE "elementwise.cuh";
    EXPERTS "experts.cuh";
    EXPERTS_MMA "experts_mma.cuh" after EXPERTS MMA;
    HALT "halt.cuh";
    INDEXING "indexing.cuh";
    LOSS "loss.cuh";
    MMA "mma.cuh";
    NORM "norm.cuh" after ROWS;
    OPTIMIZER "optimizer.cuh";
    OPTIMIZER_8BIT "optimizer_8bit.cuh" after OPTIMIZER;
    PACKING "packing.cuh";
    POOL "pool.cuh";
    RANKING "ranking.cuh";
    RECURRENT "recurrent.cuh";
    REDUCE "reduce.cuh" after ROWS;
    ROTARY "rotary.cuh";
    ROWS "rows.cuh";
    SCATTER "scatter.cuh";
    SHAPE "shape.cuh";
    SOFTMAX "softmax.cuh" after ROWS;
}

/// Returns the type of stored elements. Bools are bytes.
pub fn stored(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "double",
        DType::F32 => "float",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I64 => "i64",
        DType::I32 => "i32",
        DType::I16 => "i16",
        DType::I8 => "i8",
        DType::U64 => "u64",
        DType::U32 => "u32",
        DType::U16 => "u16",
        DType::U8 | DType::Bool => "u8",
    }
}

/// Returns the type in which elements are computed.
pub(super) fn computed(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 | DType::BF16 => "float",
        dtype => stored(dtype),
    }
}

/// Returns the unsigned type of elements of this size, for kernels that only move them.
pub(super) fn word(dtype: DType) -> &'static str {
    match dtype.bytes() {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    }
}

/// Returns `Layout<List<sizes…>, List<strides…>>` of the prelude, which counts from the first element.
pub(super) fn layout(layout: &Layout) -> String {
    let runs = layout.collapsed();
    let list = |numbers: &mut dyn Iterator<Item = i64>| {
        let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
        format!("List<{}>", numbers.join(", "))
    };
    let sizes = list(&mut runs.iter().map(|run| run.0 as i64));
    let strides = list(&mut runs.iter().map(|run| run.1 as i64));
    format!("Layout<{sizes}, {strides}>")
}

/// Returns the type that counts this number of elements.
pub(super) fn index_type(count: usize) -> &'static str {
    if count < 1 << 31 { "u32" } else { "i64" }
}

/// Returns the address of the element `[0, 0, …]` of a view.
pub(super) fn address(view: &View) -> Argument {
    let ValueStart { region, byte } = ValueStart::of(view);
    Argument::Address(region, byte)
}

/// A kernel with its arguments. First its parameters are written, then its body.
pub(super) struct KernelDraft {
    of: String,
    file: &'static File,
    /// The types of the parameters, whose names are `a0`, `a1` and so on.
    types: Vec<String>,
    arguments: Vec<Argument>,
    body: String,
    /// Blocks along x, y and z. `Kernels::launch` refuses more than a device takes.
    grid: [usize; 3],
    block: u32,
    /// The number of blocks that a multiprocessor must have at once.
    together: Option<u32>,
    /// Whether one thread does all the work.
    alone: bool,
}

/// The most parameters of a kernel in which one thread does several pieces of work in turn: kernels take 4 KiB of parameters.
const MOST_PARAMETERS: usize = 400;

/// The threads of a block, unless there is a reason for another number.
pub(super) const BLOCK: u32 = 256;

impl KernelDraft {
    /// Returns a kernel of this name, an instance of a template in a file.
    pub(super) fn of(name: impl Into<String>, file: &'static File) -> Self {
        Self {
            of: name.into(),
            file,
            types: vec![],
            arguments: vec![],
            body: String::new(),
            grid: [1; 3],
            block: BLOCK,
            together: None,
            alone: false,
        }
    }

    /// Adds a pointer to the view's first element, for reading. Returns the parameter's name.
    pub(super) fn reads(&mut self, view: &View) -> String {
        self.parameter(format!("const {}*", stored(view.dtype)), address(view))
    }

    /// Adds a pointer to the view's first element, for writing. Returns the parameter's name.
    pub(super) fn writes(&mut self, view: &View) -> String {
        self.parameter(format!("{}*", stored(view.dtype)), address(view))
    }

    /// Adds a parameter of this type, which takes 8 bytes. Returns its name.
    pub(super) fn parameter(&mut self, ty: impl Into<String>, argument: Argument) -> String {
        self.types.push(ty.into());
        self.arguments.push(argument);
        format!("a{}", self.arguments.len() - 1)
    }

    /// Returns, as an expression, whether results are added to their previous values.
    pub(super) fn adds(&mut self, instruction: &Instruction) -> String {
        if instruction.accumulates { self.parameter("i64", Argument::Adds) } else { "0".into() }
    }

    /// Adds a line to the body.
    pub(super) fn line(&mut self, text: impl AsRef<str>) {
        let _ = writeln!(self.body, "    {}", text.as_ref());
    }

    /// Lets the kernel do nothing on a device that has halted.
    pub(super) fn unless_halted(&mut self) {
        let halt = self.parameter("const u32*", Argument::Halt);
        self.body.insert_str(0, &format!("    if ({halt}[1]) return;\n"));
    }

    /// Launches a thread for each of `count` elements.
    pub(super) fn threads(self, count: usize) -> Self {
        let block = if count < BLOCK as usize { count.next_multiple_of(32) as u32 } else { BLOCK };
        Self { alone: count == 1, ..self.blocks(count.div_ceil(block as usize), block) }
    }

    /// Launches `count` blocks of `threads` threads.
    pub(super) fn blocks(mut self, count: usize, threads: u32) -> Self {
        self.grid = [count, 1, 1];
        self.block = threads;
        self
    }

    /// Launches blocks along y as well.
    pub(super) fn blocks_along_y(mut self, count: usize) -> Self {
        self.grid[1] = count;
        self
    }

    /// Requires that this number of blocks share a multiprocessor's registers. Without it the assembler may keep less in registers than
    /// a kernel needs, so that more blocks fit.
    pub(super) fn together(mut self, blocks: u32) -> Self {
        self.together = Some(blocks);
        self
    }

    /// Whether both have the same kernel and the same grid, and arguments that are known when the program is loaded.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let launch = |run: &Self| (run.file.name, run.grid, run.block, run.together);
        launch(self) == launch(other)
            && self.types == other.types
            && self.body == other.body
            && !self.arguments.contains(&Argument::Adds)
    }

    /// Combines this launch and others that are like it into one. A table has the arguments of each, and each gets a layer of blocks.
    pub(super) fn with(self, others: Vec<Self>, table: &mut Vec<Argument>) -> Self {
        let start = table.len();
        let layers = others.len() + 1;
        let all = std::iter::once(&self).chain(&others);
        table.extend(all.flat_map(|run| run.arguments.iter().cloned()));
        let mut body =
            format!("    const u64* const own = a0 + (i64)blockIdx.z * {};\n    {{\n", self.types.len());
        for (index, ty) in self.types.iter().enumerate() {
            let _ = writeln!(body, "    const auto a{index} = ({ty})own[{index}];");
        }
        Self {
            of: format!("{}_many", self.of),
            types: vec!["const u64*".into()],
            arguments: vec![Argument::Table(start)],
            body: format!("{body}{}    }}\n", self.body),
            grid: [self.grid[0], self.grid[1], layers],
            alone: false,
            ..self
        }
    }

    /// Whether a single thread does both this work and the next, so that one launch can do both.
    pub(super) fn continues(&self, next: &Self) -> bool {
        let parameters = self.types.len() + next.types.len();
        self.alone
            && next.alone
            && !self.types.is_empty()
            && self.file.name == next.file.name
            && parameters <= MOST_PARAMETERS
    }

    /// Adds the next work of the same thread.
    pub(super) fn then(mut self, next: Self) -> Self {
        let before = self.types.len();
        let _ = writeln!(self.body, "    {{");
        // The names ascend, so that none is hidden before it is read.
        for index in 0..next.types.len() {
            let _ = writeln!(self.body, "    const auto a{index} = a{};", index + before);
        }
        self.body += &next.body;
        self.body += "    }\n";
        self.types.extend(next.types);
        self.arguments.extend(next.arguments);
        self
    }
}

/// The kernels of a program, each once.
pub(super) struct Kernels {
    kernels: Vec<Kernel>,
    by_name: BTreeMap<String, usize>,
    /// Whether a device may hold the program. If none does, the program is refused for its memory when it is loaded, with advice that
    /// the error of a launch lacks. So its launches may have too many blocks.
    fits: bool,
}

/// More bytes than any GPU has.
const MOST_MEMORY: u64 = 1 << 45;

impl Kernels {
    /// Returns an empty list of kernels, for a program that needs this number of bytes.
    pub(super) fn of(bytes: u64) -> Self {
        Self { kernels: vec![], by_name: BTreeMap::new(), fits: bytes <= MOST_MEMORY }
    }

    /// Returns a draft as a launch of its kernel, which is added if it is new.
    ///
    /// # Errors
    /// A launch that no device takes.
    pub(super) fn launch(&mut self, run: KernelDraft) -> Result<Launch, Diagnostic> {
        let refused =
            |refusal| Diagnostic::new(format!("the kernel `{}` cannot be launched: {refusal}", run.of));
        let grid = match limits::grid(run.grid) {
            Err(refusal) if self.fits => return Err(refused(refusal)),
            Err(_) => [1; 3],
            Ok(grid) => grid,
        };
        let bounds = [Some(run.block), run.together].into_iter().flatten().map(|bound| bound.to_string());
        let bounds = bounds.collect::<Vec<_>>().join(", ");
        let parameters = run.types.iter().enumerate().map(|(index, ty)| format!("{ty} a{index}"));
        let function = format!("({}) {{\n{}}}\n", parameters.collect::<Vec<_>>().join(", "), run.body);
        let hash = fnv(&format!("{} {bounds} {function}", run.file.name));
        let name = format!("{}_{hash:016x}", run.of);
        let kernel = *self.by_name.entry(name).or_insert_with_key(|name| {
            let files = std::iter::once(&PRELUDE).chain(run.file.all()).collect();
            let text = format!("KERNEL({bounds}) {name}{function}");
            self.kernels.push(Kernel { name: name.clone(), files, text });
            self.kernels.len() - 1
        });
        let launch = Launch { kernel, grid, block: run.block, arguments: run.arguments };
        launch.refusal().map_or(Ok(()), |refusal| Err(refused(refusal)))?;
        Ok(launch)
    }

    pub(super) fn finish(self) -> Vec<Kernel> {
        self.kernels
    }
}

/// FNV-1a, 64 bits.
fn fnv(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Whether a view's address is a multiple of this number of bytes. Memory itself begins at a multiple of 256.
pub(super) fn is_aligned(view: &View, bytes: usize) -> bool {
    match address(view) {
        Argument::Address(_, start) => start.rem_euclid(bytes as i64) == 0,
        _ => unreachable!("a view is at an address"),
    }
}
