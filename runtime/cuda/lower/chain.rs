//! Chains of elementwise operators as kernels: a thread computes a few neighbours of the result, all steps in registers.
//!
//! Each step rounds an f16 or bf16 result as if it were stored, so fusion changes no number.

use super::source::{ELEMENTWISE, KernelDraft, computed, index_type, is_aligned, stored};
use crate::program::Argument;
use ir::ops::elementwise::{Binary, Bitwise, Compare, Logical, Unary};
use ir::{DType, Op};
use program::layout::Sizes;
use program::{Chain, ChainSource, ChainStep, Instruction, View};
use smallvec::SmallVec;

/// Returns the kernel of a chain.
pub(super) fn run(chain: &Chain, instruction: &Instruction) -> KernelDraft {
    let Instruction { operands, results, .. } = instruction;
    let dims = Dims::of(operands, results);
    let width = neighbours(&dims, operands, results);
    let count: usize = dims.sizes.iter().product();
    let mut run = KernelDraft::of("chain", &ELEMENTWISE);
    let sources: Vec<String> = operands.iter().map(|operand| run.reads(operand)).collect();
    let targets: Vec<String> = results.iter().map(|result| run.writes(result)).collect();
    let index = index_type(count);
    run.line(format!("const {index} first = ({index})thread_index();"));
    // Tensors of a single merged dim share a kernel, whatever their size.
    let end = match dims.sizes.len() {
        0 | 1 => run.parameter("i64", Argument::Number((count / width) as i64)),
        _ => (count / width).to_string(),
    };
    run.line(format!("if (first >= {end}) return;"));
    indices(&mut run, &dims, width, index);
    let reads: Vec<Read> = (0..operands.len())
        .map(|i| {
            let read = Read::of(&dims, i, &operands[i], width);
            read.load(&mut run, i, &operands[i], &sources[i], &dims, width);
            read
        })
        .collect();
    for (i, result) in results.iter().enumerate() {
        run.line(format!("Pack<{}, {width}> r{i};", stored(result.dtype)));
    }
    run.line("#pragma unroll");
    run.line(format!("for (int e = 0; e < {width}; e++) {{"));
    for (i, operand) in operands.iter().enumerate() {
        let element = reads[i].element(i);
        run.line(format!("    const {} x{i} = widen({element});", computed(operand.dtype)));
    }
    steps(&mut run, chain, instruction);
    run.line("}");
    for (i, target) in targets.iter().enumerate() {
        run.line(dims.assertion(operands.len() + i, &results[i], width));
        run.line(format!("store({target} + {}, r{i});", dims.place(operands.len() + i)));
    }
    run.threads(count / width)
}

/// Writes the computation of one element, from an element `x` of each operand: the steps, and the results among them.
fn steps(run: &mut KernelDraft, chain: &Chain, instruction: &Instruction) {
    let dtype_of = |source: &ChainSource| match *source {
        ChainSource::Operand(operand) => instruction.operands[operand as usize].dtype,
        ChainSource::Step(step) => chain.steps[step as usize].dtype,
    };
    let name = |source: &ChainSource| match source {
        ChainSource::Operand(operand) => format!("x{operand}"),
        ChainSource::Step(step) => format!("t{step}"),
    };
    for (i, step) in chain.steps.iter().enumerate() {
        let names: SmallVec<[String; 3]> = step.sources.iter().map(name).collect();
        let made = expression(step, &names, dtype_of(&step.sources[0]));
        let made = match step.dtype {
            DType::F16 | DType::BF16 => format!("rounded<{}>({made})", stored(step.dtype)),
            dtype => format!("({})({made})", computed(dtype)),
        };
        run.line(format!("    const {} t{i} = {made};", computed(step.dtype)));
        for (r, _) in chain.stores.iter().enumerate().filter(|(_, stored)| **stored == i as u32) {
            run.line(format!("    r{r}.at[e] = narrow<{}>(t{i});", stored(instruction.results[r].dtype)));
        }
    }
}

/// The dims of a chain, in the order of the first result in memory. Neighbouring dims are merged if all operands and results allow it.
struct Dims {
    sizes: Sizes,
    /// The strides of each operand, then those of each result.
    strides: Vec<SmallVec<[isize; 6]>>,
}

impl Dims {
    fn of(operands: &[View], results: &[View]) -> Self {
        let views = || operands.iter().chain(results);
        let mut dims = Self { sizes: Sizes::new(), strides: views().map(|_| SmallVec::new()).collect() };
        let layout = &results[0].layout;
        for dim in layout.by_distance().into_iter().filter(|&dim| layout.sizes[dim] != 1) {
            let own: SmallVec<[isize; 8]> = views().map(|view| view.layout.strides[dim]).collect();
            dims.push(layout.sizes[dim], &own);
        }
        dims
    }

    /// Adds an inner dim. It is merged with the last dim if every stride of the last dim spans it.
    fn push(&mut self, size: usize, own: &[isize]) {
        let reaches = |(strides, own): (&SmallVec<[isize; 6]>, &isize)| {
            strides.last().is_some_and(|last| *last == own * size as isize)
        };
        let merges = self.strides.iter().zip(own).all(reaches);
        match self.sizes.last_mut() {
            Some(last) if merges => {
                *last *= size;
                self.strides.iter_mut().for_each(|strides| strides.truncate(strides.len() - 1));
            }
            _ => self.sizes.push(size),
        }
        self.strides.iter_mut().zip(own).for_each(|(strides, own)| strides.push(*own));
    }

    fn inner(&self) -> usize {
        self.sizes.last().copied().unwrap_or(1)
    }

    fn inner_stride(&self, view: usize) -> isize {
        self.strides[view].last().copied().unwrap_or(0)
    }

    /// Whether `width` neighbours of a view can be moved at once, wherever a thread begins.
    fn in_packs(&self, index: usize, view: &View, width: usize) -> bool {
        let bytes = view.dtype.bytes() as usize;
        let at_once = 16.min(width * bytes);
        let outer = self.strides[index].iter().rev().skip(1);
        let steps_fit = |stride: &isize| (stride.unsigned_abs() * bytes).is_multiple_of(at_once);
        let near = self.inner() == 1 || self.inner_stride(index) == 1;
        near && is_aligned(view, at_once) && { outer }.all(steps_fit)
    }

    /// Returns the assertion, for the compiler, that packs of a view are aligned wherever a thread begins.
    fn assertion(&self, index: usize, view: &View, width: usize) -> String {
        let outer = self.strides[index].iter().rev().skip(1).map(|stride| format!(", {stride}"));
        let (ty, outer) = (stored(view.dtype), outer.collect::<String>());
        format!("static_assert(in_packs<{ty}, {width}{outer}>, \"packs are not aligned\");")
    }

    /// Returns the place of a thread's first element in a view, as an expression.
    fn place(&self, view: usize) -> String {
        let terms = self.strides[view].iter().enumerate().filter(|(_, stride)| **stride != 0);
        let terms: Vec<String> = terms.map(|(dim, stride)| format!("i{dim} * {stride}")).collect();
        if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") }
    }
}

/// Returns how many neighbours a thread computes: as many elements of the narrowest type as 16 bytes hold, at most 8, and fewer if the
/// inner dim or the results require it.
fn neighbours(dims: &Dims, operands: &[View], results: &[View]) -> usize {
    let moved =
        operands.iter().enumerate().filter(|(i, _)| dims.strides[*i].iter().any(|&stride| stride != 0));
    let widths =
        moved.map(|(_, view)| view.dtype.bytes()).chain(results.iter().map(|view| view.dtype.bytes()));
    let most = 16 / widths.min().unwrap_or(16).max(2) as usize;
    let mut width = most.min(8);
    let fits = |width: usize| {
        let mut results = results.iter().enumerate();
        dims.inner().is_multiple_of(width)
            && (width == 1 || results.all(|(i, view)| dims.in_packs(operands.len() + i, view, width)))
    };
    while width > 1 && !fits(width) {
        width /= 2;
    }
    width.max(1)
}

/// Writes the indices of a thread's first element along all dims, except those of size one.
fn indices(run: &mut KernelDraft, dims: &Dims, width: usize, index: &str) {
    let count = dims.sizes.len();
    if count > 1 {
        run.line(format!("{index} rest = first;"));
    }
    for dim in (0..count).rev() {
        let (size, scale) =
            if dim + 1 == count { (dims.sizes[dim] / width, width) } else { (dims.sizes[dim], 1) };
        let rest = if count > 1 { "rest" } else { "first" };
        if dim == 0 {
            run.line(format!("const i64 i0 = (i64){rest} * {scale};"));
        } else {
            run.line(format!("const i64 i{dim} = (i64)(rest % {size}u) * {scale};"));
            run.line(format!("rest /= {size}u;"));
        }
    }
}

/// The way in which a thread reads an operand.
enum Read {
    /// One element for all elements of the thread.
    One,
    /// Neighbours at once.
    Pack,
    /// Element by element, at this distance.
    Apart(isize),
}

impl Read {
    fn of(dims: &Dims, operand: usize, view: &View, width: usize) -> Self {
        let stride = dims.inner_stride(operand);
        if stride == 0 || dims.inner() == 1 {
            return Self::One;
        }
        if stride == 1 && dims.in_packs(operand, view, width) {
            return Self::Pack;
        }
        Self::Apart(stride)
    }

    fn load(
        &self,
        run: &mut KernelDraft,
        index: usize,
        view: &View,
        source: &str,
        dims: &Dims,
        width: usize,
    ) {
        let place = dims.place(index);
        let ty = stored(view.dtype);
        match self {
            Self::One => run.line(format!("const {ty} p{index} = {source}[{place}];")),
            Self::Pack => {
                run.line(dims.assertion(index, view, width));
                run.line(format!("const Pack<{ty}, {width}> p{index} = load<{width}>({source} + {place});"));
            }
            // All operands are read before a result is written, because a result may take an operand's place.
            Self::Apart(stride) => {
                run.line(format!("Pack<{ty}, {width}> p{index};"));
                run.line("#pragma unroll");
                run.line(format!(
                    "for (int e = 0; e < {width}; e++) p{index}.at[e] = {source}[{place} + e * {stride}];"
                ));
            }
        }
    }

    fn element(&self, index: usize) -> String {
        match self {
            Self::One => format!("p{index}"),
            Self::Pack | Self::Apart(_) => format!("p{index}.at[e]"),
        }
    }
}

/// Returns a step as an expression over its sources. The operands of a step have one type, except for the condition of a select.
fn expression(step: &ChainStep, names: &[String], dtype: DType) -> String {
    let x = &names[0];
    let [float, own] = [dtype.is_float(), step.dtype.is_float()];
    match &step.op {
        Op::Unary(op) => unary(*op, x, float),
        Op::Binary(op) => binary(*op, x, &names[1], float),
        Op::Bitwise(op) => bitwise(*op, x, &names[1], dtype),
        Op::Compare(op) => {
            let sign = match op {
                Compare::Equal => "==",
                Compare::Less => "<",
                Compare::LessEqual => "<=",
                Compare::Greater => ">",
                Compare::GreaterEqual => ">=",
            };
            format!("{x} {sign} {}", names[1])
        }
        Op::Logical(op) => {
            let sign = match op {
                Logical::And => "&&",
                Logical::Or => "||",
                Logical::Xor => "!=",
            };
            format!("({x} != 0) {sign} ({} != 0)", names[1])
        }
        Op::Select(_) => format!("{x} != 0 ? {} : {}", names[1], names[2]),
        Op::Cast(_) => match (float, own) {
            _ if step.dtype == DType::Bool => format!("{x} != 0"),
            (true, false) => format!("elementwise::to_integer({x})"),
            // A conversion through f32 would round twice.
            (false, true) if step.dtype.bytes() == 2 => format!("(double){x}"),
            _ => x.clone(),
        },
        other => unreachable!("`{}` is not elementwise", other.name()),
    }
}

fn unary(op: Unary, x: &str, float: bool) -> String {
    match op {
        Unary::Not => return format!("{x} == 0"),
        Unary::IsNan => return format!("{x} != {x}"),
        Unary::Neg if float => return format!("-{x}"),
        _ => {}
    }
    let name = match op {
        Unary::Abs if float => "fabs",
        Unary::Abs => "integer::abs",
        Unary::Neg => "integer::neg",
        Unary::Sign if float => "elementwise::sign",
        Unary::Sign => "integer::sign",
        Unary::Exp => "exp",
        Unary::Log => "log",
        Unary::Sqrt => "sqrt",
        Unary::Rsqrt => "elementwise::reciprocal_root",
        Unary::Reciprocal => "1 / ",
        Unary::Sin => "sin",
        Unary::Cos => "cos",
        Unary::Atan => "atan",
        Unary::Tanh => "tanh",
        Unary::Erf => "erf",
        Unary::Sigmoid => "elementwise::sigmoid",
        Unary::Relu => "elementwise::relu",
        Unary::Gelu => "elementwise::gelu",
        Unary::GeluTanh => "elementwise::gelu_tanh",
        Unary::Silu => "elementwise::silu",
        Unary::Floor => "floor",
        Unary::Ceil => "ceil",
        Unary::Round => "rint",
        Unary::Not | Unary::IsNan => unreachable!("written above"),
    };
    format!("{name}({x})")
}

fn binary(op: Binary, x: &str, y: &str, float: bool) -> String {
    let sign = match op {
        Binary::Add => "+",
        Binary::Sub => "-",
        Binary::Mul => "*",
        Binary::Div => "/",
        _ => "",
    };
    if float && !sign.is_empty() {
        return format!("{x} {sign} {y}");
    }
    let name = match (op, float) {
        (Binary::Add, _) => "integer::add",
        (Binary::Sub, _) => "integer::sub",
        (Binary::Mul, _) => "integer::mul",
        (Binary::Div, _) => "integer::div",
        (Binary::Pow, true) => "elementwise::power",
        (Binary::Pow, false) => "integer::power",
        (Binary::Max | Binary::AtLeast, true) => "larger",
        (Binary::Max | Binary::AtLeast, false) => "integer::largest",
        (Binary::Min | Binary::AtMost, true) => "smaller",
        (Binary::Min | Binary::AtMost, false) => "integer::smallest",
        (Binary::Mod, true) => "elementwise::modulo",
        (Binary::Mod, false) => "integer::modulo",
        (Binary::GeluGrad, _) => "elementwise::gelu_grad",
        (Binary::GeluTanhGrad, _) => "elementwise::gelu_tanh_grad",
        (Binary::SiluGrad, _) => "elementwise::silu_grad",
        (Binary::ReluGrad, _) => "elementwise::relu_grad",
    };
    format!("{name}({x}, {y})")
}

fn bitwise(op: Bitwise, x: &str, y: &str, dtype: DType) -> String {
    let bits = 8 * dtype.bytes();
    let wide = if matches!(dtype, DType::I64 | DType::I32 | DType::I16 | DType::I8) { "i64" } else { "u64" };
    match op {
        Bitwise::And => format!("{x} & {y}"),
        Bitwise::Or => format!("{x} | {y}"),
        Bitwise::Xor => format!("{x} ^ {y}"),
        Bitwise::ShiftLeft => format!("integer::shift_left({x}, (i64){y}, {bits})"),
        Bitwise::ShiftRight => format!("integer::shift_right(({wide}){x}, (i64){y}, {bits})"),
    }
}
