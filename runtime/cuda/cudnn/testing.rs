//! Builds instructions for the tests of cuDNN.

use cranelift_entity::EntityRef;
use ir::ops::Float;
use ir::ops::attention::{Attention, AttentionGrad};
use ir::{DType, NodeId, Op};
use program::layout::Layout;
use program::{Instruction, Kernel, Region, View};
use smallvec::smallvec;

/// Gives tensors consecutive places, each at a multiple of 256 bytes.
#[derive(Default)]
pub(crate) struct Places {
    next: u64,
}

impl Places {
    /// Returns a tensor whose dims have this order in memory. The tensor lies `behind` elements after its place.
    pub(crate) fn view(&mut self, dtype: DType, sizes: &[usize], order: &[usize], behind: u64) -> View {
        let layout = Layout::in_order(sizes, order);
        let base = self.next + behind * dtype.bytes();
        self.next = (base + layout.len() as u64 * dtype.bytes()).next_multiple_of(256);
        View::whole(Region::Arena, base, dtype, layout)
    }

    /// Returns a row-major tensor without holes.
    pub(crate) fn dense(&mut self, dtype: DType, sizes: &[usize], behind: u64) -> View {
        let order: Vec<usize> = (0..sizes.len()).collect();
        self.view(dtype, sizes, &order, behind)
    }
}

pub(crate) fn instruction(op: impl Into<Op>, operands: Vec<View>, results: Vec<View>) -> Instruction {
    Instruction {
        kernel: Kernel::Op(op.into()),
        operands,
        results,
        scratch: None,
        in_place: smallvec![],
        accumulates: false,
        of_microbatch: false,
        parts: None,
        node: NodeId::new(0),
        origin: "".into(),
    }
}

/// Returns attention of `[batch, heads, key-value heads, length, width]`, and its gradient. In memory, heads come after
/// positions, as in real models.
pub(crate) fn attention(
    [batch, heads, groups, length, width]: [usize; 5],
    dtype: DType,
    causal: bool,
) -> [Instruction; 2] {
    let mut places = Places::default();
    let mut of = |heads: usize| places.view(dtype, &[batch, heads, length, width], &[0, 2, 1, 3], 0);
    let ([q, out, dout, dq], [k, v, dk, dv]) = ([(); 4].map(|()| of(heads)), [(); 4].map(|()| of(groups)));
    let logsumexp = places.dense(DType::F32, &[batch, heads, length], 0);
    let scratch = places.dense(DType::F32, &[2 * batch * heads * length.next_multiple_of(64)], 0);
    let scale = Float::new(1.0 / (width as f64).sqrt());
    let [operands, results] = [[&q, &k, &v], [&dq, &dk, &dv]].map(|views| views.map(View::clone).to_vec());
    let forward =
        instruction(Attention { scale, causal }, operands.clone(), vec![out.clone(), logsumexp.clone()]);
    let operands = operands.into_iter().chain([out, logsumexp, dout]).collect();
    let mut gradient = instruction(AttentionGrad { scale, causal }, operands, results);
    gradient.scratch = Some(scratch);
    [forward, gradient]
}
