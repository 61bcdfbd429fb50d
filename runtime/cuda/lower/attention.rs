//! Attention and its gradient: on tensor cores if they take it, else in tiles of any type, width and mask.

mod matrices;

use super::source::{ATTENTION, ATTENTION_GRAD, KernelDraft, address, computed, is_aligned};
use super::{Multiprocessors, Step, Unplaced};
use ir::ops::attention::{Attention, AttentionGrad};
use ir::{DType, Op, Type};
use program::layout::Layout;
use program::{Instruction, View};

pub(super) fn attention(op: &Attention, instruction: &Instruction) -> KernelDraft {
    let call = Call::of(&instruction.operands, instruction, op.scale.get(), op.causal);
    let [out, logsumexp] = &instruction.results[..] else { unreachable!("infer has counted") };
    if matrices::take(&call, &[out]) {
        return matrices::forward(&call, out, logsumexp);
    }
    let tiles = call.tiles(&[out], 2);
    let mut run = KernelDraft::of("attention", &ATTENTION);
    let mut arguments: Vec<String> = [call.q, call.k, call.v].iter().map(|view| run.reads(view)).collect();
    arguments.push(call.mask(&mut run));
    arguments.extend([out, logsumexp].iter().map(|view| run.writes(view)));
    arguments.extend(call.numbers(&mut run));
    let types =
        [call.text(), rows(call.q), rows(call.k), rows(call.v), rows(out), call.mask_text(), tiles.text()];
    let (columns, across) = tiles.columns(call.value_width);
    run.line(format!("attention::forward<{}, {columns}>({});", types.join(", "), arguments.join(", ")));
    let run = tiles.blocks(run, [call.queries, call.batch * call.heads], columns);
    run.blocks_along_y(across)
}

pub(super) fn attention_grad(op: &AttentionGrad, instruction: &Instruction) -> Vec<Step> {
    let Some((forward, [out, logsumexp, dout])) = instruction.operands.split_last_chunk::<3>() else {
        unreachable!("infer has counted");
    };
    let call = Call::of(forward, instruction, op.scale.get(), op.causal);
    let gradient = Gradient { call, out, logsumexp, dout, instruction };
    let others: Vec<&View> = [out, dout].into_iter().chain(&instruction.results).collect();
    if matrices::take(&gradient.call, &others) {
        return matrices::gradient(&gradient).into_iter().map(Step::Kernel).collect();
    }
    let mut runs = vec![];
    if gradient.call.queries > 0 {
        runs.push(gradient.prepare());
        // Only a float can be so large that a logsumexp tells nothing of the sum.
        runs.extend(gradient.call.mask.filter(|mask| mask.dtype.is_float()).map(|_| gradient.normalize()));
        runs.push(gradient.by_queries());
    }
    if gradient.call.keys > 0 {
        runs.push(gradient.by_keys());
    }
    runs.into_iter().map(Step::Kernel).collect()
}

/// Returns the f32 numbers of scratch that the kernels take: three numbers for each row of the scores, or the numbers that tensor cores
/// take.
pub(super) fn scratch(_: &Op, operands: &[Unplaced], results: &[Unplaced], _: Multiprocessors) -> usize {
    let dq = &results[0];
    let (heads, queries) = (dq.layout.sizes[0] * dq.layout.sizes[1], dq.layout.sizes[2]);
    let numbers = if operands[0].dtype == DType::F64 { 6 } else { 3 };
    // At least one: without queries the scratch exists, but is not used.
    let adds = operands.len() > 6 && operands[3].dtype.is_float();
    (numbers * heads * queries).max(matrices::scratch(heads, queries, adds)).max(1)
}

/// The operands and sizes that forward and gradient share.
struct Call<'a> {
    q: &'a View,
    k: &'a View,
    v: &'a View,
    mask: Option<&'a View>,
    scale: f64,
    causal: bool,
    /// The type of all queries, if they are split over devices.
    whole: Option<&'a Type>,
    batch: usize,
    heads: usize,
    /// The number of key-value heads.
    groups: usize,
    queries: usize,
    keys: usize,
    /// The width of queries and keys.
    width: usize,
    value_width: usize,
}

impl<'a> Call<'a> {
    /// Reads a call from `q, k, v` and a mask, if there is one.
    fn of(operands: &'a [View], instruction: &'a Instruction, scale: f64, causal: bool) -> Self {
        let [q, k, v, mask @ ..] = operands else { unreachable!("infer has counted") };
        let [batch, heads, queries, width] = [0, 1, 2, 3].map(|dim| q.layout.sizes[dim]);
        let [groups, keys] = [1, 2].map(|dim| k.layout.sizes[dim]);
        let (mask, value_width) = (mask.first(), v.layout.sizes[3]);
        let whole = instruction.parts.as_ref().map(|parts| &parts.operands[0]);
        Self { q, k, v, mask, scale, causal, whole, batch, heads, groups, queries, keys, width, value_width }
    }

    fn text(&self) -> String {
        let Self { heads, queries, keys, width, value_width, causal, .. } = self;
        let group = heads / self.groups.max(1);
        format!("attention::Call<{heads}, {group}, {queries}, {keys}, {width}, {value_width}, {causal}>")
    }

    fn mask_text(&self) -> String {
        let Some(mask) = self.mask else { return "attention::NoMask".into() };
        let layout = mask.layout.broadcast(&[self.batch, self.heads, self.queries, self.keys]);
        format!("attention::Mask<{}>", numbers(&layout, 4))
    }

    /// Returns the mask as an argument.
    fn mask(&self, run: &mut KernelDraft) -> String {
        self.mask.map_or_else(|| "(const u8*)0".into(), |mask| run.reads(mask))
    }

    /// Returns the factor on the scores, and the position of the first query among all queries.
    fn numbers(&self, run: &mut KernelDraft) -> [String; 2] {
        let first = run.parameter("i64", super::indexing::start(self.whole, 2, self.queries));
        [format!("({}){:e}", computed(self.q.dtype), self.scale), first]
    }

    /// Divides the work into tiles. `others` are further views that are read or written; a block has at most `most` tiles of columns.
    fn tiles(&self, others: &[&View], most: usize) -> Tiles {
        let dtype = self.q.dtype;
        let blocks = self.batch * self.heads * self.queries.div_ceil(64);
        // If there are too few blocks for a device, smaller tiles make more.
        let size = if dtype == DType::F64 || blocks < 256 { 32 } else { 64 };
        let pack = if self.in_packs(others) { self.pack() } else { 1 };
        Tiles { dtype, size, pack, most }
    }

    /// Returns the number of elements in 16 bytes.
    fn pack(&self) -> usize {
        16 / self.q.dtype.bytes() as usize
    }

    /// Whether all rows, also those of `others`, consist of whole and aligned packs.
    fn in_packs(&self, others: &[&View]) -> bool {
        let pack = self.pack();
        let fits = |view: &&View| {
            let layout = &view.layout;
            let steps_fit =
                layout.strides[..3].iter().all(|stride| stride.unsigned_abs().is_multiple_of(pack));
            steps_fit && is_aligned(view, 16) && layout.sizes[3].is_multiple_of(pack.max(4))
        };
        [self.q, self.k, self.v].iter().chain(others).all(fits)
    }
}

/// The division of the work into tiles of rows and columns.
struct Tiles {
    dtype: DType,
    size: usize,
    /// The number of elements that are read at once.
    pack: usize,
    /// The most tiles of columns of a block.
    most: usize,
}

impl Tiles {
    fn text(&self) -> String {
        format!("attention::Tile<{}, {}, {}>", computed(self.dtype), self.size, self.pack)
    }

    /// Returns the tiles of columns of a block, and the number of blocks for all columns.
    fn columns(&self, width: usize) -> (usize, usize) {
        let tiles = width.div_ceil(self.size).clamp(1, self.most);
        (tiles, width.div_ceil(tiles * self.size).max(1))
    }

    /// Launches a block for each tile of the rows of `heads` heads. Its threads hold their share of `sums` tiles. These should stay in
    /// registers: 128 registers are enough for two small tiles.
    fn blocks(&self, run: KernelDraft, [rows, heads]: [usize; 2], sums: usize) -> KernelDraft {
        let lanes = self.size as u32 / 4;
        let together = if lanes == 8 && sums <= 2 && self.dtype != DType::F64 { 8 } else { 1 };
        run.blocks(rows.div_ceil(self.size) * heads, lanes * lanes).together(together)
    }
}

/// The gradient of attention.
struct Gradient<'a> {
    call: Call<'a>,
    out: &'a View,
    logsumexp: &'a View,
    dout: &'a View,
    instruction: &'a Instruction,
}

impl Gradient<'_> {
    /// Returns the kernel that computes the numbers of each row of the scores, in scratch.
    fn prepare(&self) -> KernelDraft {
        let Self { call, out, logsumexp, dout, .. } = self;
        let mut run = KernelDraft::of("attention_rows", &ATTENTION_GRAD);
        let sources = [out, dout, logsumexp].map(|view| run.reads(view)).join(", ");
        let (kept, count) = (self.rows(&mut run), call.batch * call.heads * call.queries);
        let types = [call.text(), rows(out), rows(dout)].join(", ");
        run.line(format!("attention::prepare<{types}>({sources}, {kept}, {count});"));
        run.threads(count * 32)
    }

    fn normalize(&self) -> KernelDraft {
        let call = &self.call;
        let tiles = call.tiles(&[], 1);
        let mut run = KernelDraft::of("attention_normalize", &ATTENTION_GRAD);
        let mut arguments =
            vec![run.reads(call.q), run.reads(call.k), call.mask(&mut run), self.rows(&mut run)];
        arguments.extend(call.numbers(&mut run));
        let types = [call.text(), rows(call.q), rows(call.k), call.mask_text(), tiles.text()].join(", ");
        run.line(format!("attention::normalize<{types}>({});", arguments.join(", ")));
        tiles.blocks(run, [call.queries, call.batch * call.heads], 1)
    }

    fn by_keys(&self) -> KernelDraft {
        let call = &self.call;
        let [_, dk, dv] = &self.instruction.results[..] else { unreachable!("infer has counted") };
        let run = KernelDraft::of("attention_by_keys", &ATTENTION_GRAD);
        self.by("by_keys", run, &[dk, dv], call.width.max(call.value_width), [call.keys, call.groups])
    }

    fn by_queries(&self) -> KernelDraft {
        let (call, dq) = (&self.call, &self.instruction.results[0]);
        let run = KernelDraft::of("attention_by_queries", &ATTENTION_GRAD);
        self.by("by_queries", run, &[dq], call.width, [call.queries, call.heads])
    }

    /// Returns the kernel that computes these results of that width, for `count` rows and `heads` heads.
    fn by(
        &self,
        name: &str,
        mut run: KernelDraft,
        results: &[&View],
        width: usize,
        [count, heads]: [usize; 2],
    ) -> KernelDraft {
        let call = &self.call;
        // A second tile of columns of doubles does not fit into a thread's registers.
        let most = if self.dout.dtype == DType::F64 { 1 } else { 2 };
        let others: Vec<&View> = [self.dout].into_iter().chain(results.iter().copied()).collect();
        let tiles = call.tiles(&others, most);
        let mut arguments = [call.q, call.k, call.v].map(|view| run.reads(view)).to_vec();
        arguments.extend([call.mask(&mut run), run.reads(self.dout), self.rows(&mut run)]);
        arguments.extend(results.iter().map(|view| run.writes(view)));
        arguments.extend(call.numbers(&mut run));
        let mut types = vec![call.text()];
        types.extend([call.q, call.k, call.v].iter().map(|view| rows(view)));
        types.extend(others.iter().map(|view| rows(view)));
        types.extend([call.mask_text(), tiles.text()]);
        let (columns, across) = tiles.columns(width);
        run.line(format!("attention::{name}<{}, {columns}>({});", types.join(", "), arguments.join(", ")));
        tiles.blocks(run, [count, call.batch * heads], results.len() * columns).blocks_along_y(across)
    }

    /// Returns the rows in scratch, as an argument.
    fn rows(&self, run: &mut KernelDraft) -> String {
        let scratch = self.instruction.scratch.as_ref().expect("`scratch` has asked for it");
        let ty = format!("attention::Row<{}>*", computed(self.dout.dtype));
        run.parameter(ty, address(scratch))
    }
}

/// Returns the type of a view's rows, with their strides.
fn rows(view: &View) -> String {
    format!("attention::Rows<{}>", numbers(&view.layout, 3))
}

/// Returns the first strides of a layout.
fn numbers(layout: &Layout, count: usize) -> String {
    let strides: Vec<String> = layout.strides[..count].iter().map(|stride| stride.to_string()).collect();
    strides.join(", ")
}
