//! Spmd: makes one program for all devices. It finds the shardings of all values from a few seeds, and adds collectives where they differ.
//!
//! The pass builds the mesh, and then seeds shardings, each of which factors pass on (`propagation`): those of the user, of the batch, of
//! experts (`experts`), and of the graph (`strategy`). Operators that only a rule of their own can split are replaced by several nodes.
//! ZeRO follows (`zero`). At last all nodes get operands in agreeing shardings (`partition`), and the module is at level placed.
//!
//! Invariants: a collective changes only the sharding of a value; no node is computed over other elements than
//! before; without an axis of two devices or more the program stays as it is.

mod asked;
mod choose;
mod experts;
mod mesh;
mod pad;
mod partition;
mod propagation;
mod report;
mod reshard;
mod strategy;
mod sums;
mod zero;

pub use asked::Shard;
pub use mesh::AxisSize;

use crate::arguments::Options;
use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use ir::factors::FactorKind;
use ir::{At, AxisRole, Builder, Changed, Diagnostic, Level, Mesh, Module, NodeId, NodeRef, Operator};
use propagation::{Layouts, Rules};

/// The pass `spmd`. `spmd(mesh=dp:2*tp:2, zero=1, sequence-parallel, shard="h.*.weight=-,tp")`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spmd {
    /// The axes of the mesh, outermost first.
    pub mesh: Vec<AxisSize>,
    /// ZeRO's stage, 0 to 3.
    pub zero: u8,
    /// Whether activations between tensor-parallel regions are split over the sequence.
    pub sequence_parallel: bool,
    /// Shardings of states that the user fixed.
    pub shard: Vec<Shard>,
}

impl Transform for Spmd {
    const NAME: &'static str = "spmd";
    const NEEDED: bool = false;

    fn options(&mut self, options: &mut Options) {
        options.joined("mesh", '*', &mut self.mesh, AxisSize::parse);
        options.value("zero", &mut self.zero, 0);
        let zero = self.zero;
        options.check(|| {
            (zero > 3).then(|| format!("there is no ZeRO stage {zero}; the stages are 0, 1, 2 and 3"))
        });
        options.flag("sequence-parallel", &mut self.sequence_parallel);
        options.list("shard", &mut self.shard);
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        let mesh = mesh::build(&self.mesh, module, cx)?;
        if mesh.axes.is_empty() {
            return Ok(Changed::No);
        }
        if module.level != Level::Training {
            return Err(Diagnostic::new(
                "the pass `spmd` needs a complete training step that is not yet placed on a mesh",
            )
            .note("run `autodiff` and `optimizer` once before `spmd`, and `spmd` once"));
        }
        module.mesh = mesh.clone();
        let asked = asked::parts(module, &mesh, &self.shard, cx);
        pad::apply(module, mesh.size(&mesh::of_role(&mesh, AxisRole::Tensor)), &asked)?;
        let mut layouts = self.seed(module, &mesh, cx)?;
        if take_apart(module, &mesh, &layouts)? == Changed::Yes {
            layouts = self.seed(module, &mesh, cx)?;
        }
        let rules = Rules::new(module, &mesh);
        let demands = zero::plan(&rules, &mut layouts, self.zero);
        cx.reports.shardings = report::shardings(module, &mesh, &layouts, &demands);
        module.level = Level::Placed;
        partition::apply(module, &layouts, &demands, Self::NAME)?;
        remove_dead(module, Self::NAME);
        Ok(Changed::Yes)
    }
}

impl Spmd {
    /// Returns the layouts before ZeRO.
    fn seed(&self, module: &Module, mesh: &Mesh, cx: &PassContext) -> Result<Layouts, Diagnostic> {
        let rules = Rules::new(module, mesh);
        let mut layouts = Layouts::default();
        let fixed = asked::seed(&rules, &mut layouts, &self.shard, cx)?;
        // Experts are seeded before the batch is split over their axes, so that they get the axes for which both compete.
        let experts = mesh::of_role(mesh, AxisRole::Expert);
        strategy::data(&rules, &mut layouts, &mesh::of_role(mesh, AxisRole::Data));
        experts::seed(&rules, &mut layouts, &experts)?;
        strategy::data(&rules, &mut layouts, &experts);
        strategy::addends(&rules, &mut layouts, &mesh::of_role(mesh, AxisRole::Data));
        strategy::asked(&rules, &mut layouts, &fixed);
        let tensor = mesh::of_role(mesh, AxisRole::Tensor);
        strategy::tensor(&rules, &mut layouts, &tensor);
        if self.sequence_parallel {
            strategy::sequence(&rules, &mut layouts, &tensor);
        }
        Ok(layouts)
    }
}

/// Replaces operators that are split along a factor that only their own rule can split and that no result has. The alternative would
/// be to gather an operand, which may be a model's largest activation.
fn take_apart(module: &mut Module, mesh: &Mesh, layouts: &Layouts) -> Result<Changed, Diagnostic> {
    let rules = Rules::new(module, mesh);
    let split: Vec<NodeId> =
        module.order().iter().copied().filter(|&id| splits_custom(&rules, layouts, id)).collect();
    drop(rules);
    let mut b = Builder::new(module, Spmd::NAME);
    for id in split {
        let node = b.module().node(id).clone();
        b.at(At::Before(id));
        let made = node.op.partition(&mut b, NodeRef { operands: &node.operands, results: &node.results })?;
        for (&old, new) in node.results.iter().zip(made) {
            b.replace(old, new);
        }
        b.remove(id);
    }
    Ok(b.finish())
}

fn splits_custom(rules: &Rules, layouts: &Layouts, id: NodeId) -> bool {
    let factors = rules.of(id);
    let custom = |factor: &u32| factors.factors[*factor as usize].kind == FactorKind::Custom;
    let kept = |factor: &u32| factors.results.iter().flatten().any(|dim| dim.contains(factor));
    let node = rules.module.node(id);
    node.operands.iter().zip(&factors.operands).any(|(&operand, dims)| {
        let split = |(i, dim): (usize, &ir::factors::DimFactors)| {
            !layouts.axes(operand, i).is_empty() && dim.iter().any(|factor| custom(factor) && !kept(factor))
        };
        dims.iter().enumerate().any(split)
    })
}
