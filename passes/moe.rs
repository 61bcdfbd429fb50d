//! Moe: turns dense feed-forward blocks into mixtures of experts.
//!
//! Each block that `find` recognises by its structure gets a router and experts, which begin as copies of the block (sparse
//! upcycling, Komatsuzaki et al., arXiv 2212.05055) or fresh. The routing is written on global shapes, in groups of one sequence,
//! so that no mesh changes the numbers; `spmd` splits it later. Two forms:
//!
//! - **dropless**: every token meets its experts as rows of `experts`;
//! - **capacity**: each expert has a fixed number of slots in each group; tokens without a slot are dropped, which leaves them to the
//!   residual stream. Dispatch and combine are gathers, and experts a contraction with a batch dim.
//!
//! Invariants: the outputs of the model keep their names and types; a parameter of a block becomes a state of its experts;
//! the sum of the balance losses is the output `loss.penalty`, which the pass `loss` adds to the minimised sum.

mod balance;
mod experts;
mod find;
mod options;
mod route;
mod slots;

pub use find::{Block, FeedForward, PATTERN, blocks};

use crate::arguments::Options;
use crate::pass::{PassContext, Transform};
use crate::reports::{ParameterReport, RowRole, StateView};
use crate::rewriting::dead::remove_dead;
use ir::{Builder, Changed, Diagnostic, Level, Module, Op, Role, View};
use std::collections::BTreeSet;

/// The pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// The number of experts in a block.
    pub experts: u64,
    /// The distance of mixtures: every `every`-th block becomes one.
    pub every: u64,
    /// The hidden numbers of an expert; `None` for as many as the dense block has.
    pub hidden: Option<u64>,
    /// The weights of experts before step 0.
    pub start: ExpertStart,
    /// The standard deviation of the normal numbers that are added to copies.
    pub noise: f64,
    /// Whether the dense block stays beside the experts, for every token.
    pub shared: bool,
    /// The seed of random choices.
    pub seed: u64,
    /// The rule by which tokens and experts meet.
    pub routing: Routing,
}

/// The default is not valid until `experts` is set.
impl Default for Moe {
    fn default() -> Self {
        Self {
            experts: 0,
            every: 1,
            hidden: None,
            start: ExpertStart::Copies,
            noise: 0.0,
            shared: false,
            seed: 0,
            routing: Routing::default(),
        }
    }
}

/// The weights of experts before step 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertStart {
    /// The weights of the dense block; a narrower expert begins as a part of it.
    #[default]
    Copies,
    /// Normal with deviation √(0.1 / fan in), as Switch Transformers begin (Fedus et al., arXiv 2101.03961, section 2.4).
    Fresh,
}

/// The rule by which tokens and experts meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// The number of experts that a token chooses. Not used with `by_experts`.
    pub top: u64,
    /// The factors of the experts' results.
    pub gates: Gates,
    /// The slots of an expert, as a multiple of the tokens that it would have if all had equally many; `None` drops nothing.
    pub capacity: Option<f64>,
    /// Equal groups of experts, and the number of groups that a token takes its experts from: those with the largest sums of the two
    /// highest probabilities (DeepSeek-AI, arXiv 2412.19437, section 2.1.2).
    pub limit: Option<GroupLimit>,
    /// Whether the second choice is taken at random, in proportion to its gate (GShard).
    pub random_second: bool,
    /// Whether experts choose tokens (Zhou et al., arXiv 2202.09368).
    pub by_experts: bool,
    /// The numbers by which tokens choose.
    pub affinity: Affinity,
    /// The change in a step of the bias of an expert that has more or fewer tokens than the mean; 0 for no bias
    /// ([`crate::router_bias`]).
    pub bias: f64,
    /// The factor of the balance loss.
    pub balance: f64,
    /// The factor of the z-loss (Zoph et al., arXiv 2202.08906, equation 5).
    pub z: f64,
    /// The jitter of the router's input: it is multiplied by uniform numbers from 1 - jitter to 1 + jitter.
    pub jitter: f64,
}

/// Groups of experts, such as those of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// The number of groups, which have equally many experts.
    pub groups: u64,
    /// The number of groups that a token takes experts from.
    pub taken: u64,
}

/// The numbers by which tokens choose experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// The softmax of a token's scores.
    #[default]
    Softmax,
    /// The sigmoid of each score (DeepSeek-AI, arXiv 2412.19437, equation 15).
    Sigmoid,
}

/// The factors of the experts' results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gates {
    /// The affinities of the chosen experts.
    Probabilities,
    /// The affinities of the chosen experts, divided by their sum.
    Renormalized,
}

impl Routing {
    /// Switch Transformer (Fedus et al., arXiv 2101.03961): one expert, its probability as the gate, capacity 1.25.
    pub const SWITCH: Self = Self {
        top: 1,
        gates: Gates::Probabilities,
        capacity: Some(1.25),
        limit: None,
        random_second: false,
        by_experts: false,
        affinity: Affinity::Softmax,
        bias: 0.0,
        balance: 0.01,
        z: 0.0,
        jitter: 0.01,
    };
    /// GShard (Lepikhin et al., arXiv 2006.16668, algorithm 1): two experts, the second at random, capacity 2 for each token.
    pub const GSHARD: Self = Self {
        top: 2,
        gates: Gates::Renormalized,
        capacity: Some(1.0),
        random_second: true,
        jitter: 0.0,
        ..Self::SWITCH
    };
    /// Expert choice (Zhou et al., arXiv 2202.09368): each expert takes the tokens with the highest scores, up to twice its equal share of
    /// the tokens.
    pub const EXPERT_CHOICE: Self = Self {
        top: 1,
        gates: Gates::Probabilities,
        capacity: Some(2.0),
        by_experts: true,
        balance: 0.0,
        jitter: 0.0,
        ..Self::SWITCH
    };
}

impl Default for Routing {
    /// As Mixtral (arXiv 2401.04088): two experts, gates that add up to one, nothing dropped.
    fn default() -> Self {
        Self { top: 2, gates: Gates::Renormalized, capacity: None, jitter: 0.0, ..Self::SWITCH }
    }
}

impl Moe {
    fn check(&self) -> Result<(), String> {
        let Routing { top, capacity, random_second, by_experts, affinity, bias, balance, z, jitter, .. } =
            self.routing;
        let experts = self.experts;
        if top == 0 || top > experts && !by_experts {
            return Err(match top {
                0 => "top=0 gives a token no expert; a token takes at least 1".into(),
                _ => format!("top={top} is more than the {experts} experts"),
            });
        }
        if capacity.is_some_and(|capacity| capacity.is_nan() || capacity <= 0.0) {
            let capacity = capacity.unwrap_or_default();
            return Err(format!(
                "capacity={capacity} drops every token; 1.25 leaves room, and none drops nothing"
            ));
        }
        if by_experts && capacity.is_none() {
            return Err("expert-choice takes a capacity: the number of tokens of an expert".into());
        }
        if let Some(GroupLimit { groups, taken }) = self.routing.limit {
            let in_group = experts / groups.max(1);
            if groups == 0 || !experts.is_multiple_of(groups) || taken == 0 || taken > groups || by_experts {
                return Err(format!(
                    "groups={taken}/{groups} does not divide {experts} experts: write groups=TAKEN/ALL, where ALL divides the experts"
                ));
            }
            if top > taken * in_group {
                return Err(format!(
                    "groups={taken}/{groups} leaves {} experts, and top={top}",
                    taken * in_group
                ));
            }
        }
        if random_second && (top != 2 || by_experts) {
            return Err(format!("random-second takes top=2, not top={top}"));
        }
        if by_experts && (bias > 0.0 || affinity == Affinity::Sigmoid) {
            return Err(
                "expert-choice takes no bias and no sigmoid: every expert has equally many tokens".into()
            );
        }
        if z > 0.0 && affinity == Affinity::Sigmoid {
            return Err(format!("z={z} keeps the sum of a softmax small, and sigmoid has none"));
        }
        if self.every == 0 {
            return Err(
                "every=0 selects no block; every=1 takes all blocks, every=2 every second block".into()
            );
        }
        let factors =
            [("bias", bias), ("balance", balance), ("z", z), ("jitter", jitter), ("noise", self.noise)];
        match factors.into_iter().find(|(_, factor)| !(factor.is_finite() && *factor >= 0.0)) {
            Some((name, factor)) => {
                Err(format!("{name}={factor} is not allowed; give a finite number, 0 or more"))
            }
            None if jitter >= 1.0 => Err(format!("jitter={jitter} is too large; it is below 1")),
            None => Ok(()),
        }
    }
}

impl Transform for Moe {
    const NAME: &'static str = "moe";
    const NEEDED: bool = true;

    fn options(&mut self, options: &mut Options) {
        options.custom(self, options::parse, options::print);
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        if module.level != Level::Imported {
            let error = Diagnostic::new("the pass `moe` reads the forward program");
            return Err(error.note("run it before `loss` and `autodiff`"));
        }
        if module.nodes().any(|(_, node)| matches!(node.op, Op::Experts(_))) {
            let error = Diagnostic::new("the model has experts already, and --moe would add more");
            return Err(
                error.note("remove --moe: exported experts are trained, and --mesh ep=N spreads them")
            );
        }
        let FeedForward { blocks, near } = blocks(module);
        if blocks.is_empty() {
            let error = Diagnostic::new("--moe found no feed-forward block in the model").note(
                "a block is a multiplication with a parameter, an activation, and a second multiplication, of sequences",
            );
            return Err(near.into_iter().take(5).fold(error, |error, near| {
                error.note(format!("{} is not such a block: {}", near.origin, near.reason))
            }));
        }
        if self.routing.by_experts {
            warn_of_later_tokens(module, cx);
        }
        let chosen = blocks.iter().skip(self.every as usize - 1).step_by(self.every as usize);
        let chosen: Vec<&Block> = chosen.collect();
        if chosen.is_empty() {
            let error = format!("every={} is more than the {} feed-forward blocks", self.every, blocks.len());
            return Err(Diagnostic::new(error).note("give a smaller distance, such as every=1"));
        }
        let mut b = Builder::new(module, Self::NAME);
        let mut parts = balance::BalanceScalars::default();
        for (layer, block) in chosen.into_iter().enumerate() {
            self.insert(&mut b, block, layer as u32, &mut parts)?;
        }
        balance::add_outputs(&mut b, &parts)?;
        b.finish();
        remove_dead(module, Self::NAME);
        report(module, cx);
        Ok(Changed::Yes)
    }
}

/// Updates the report of parameters. Those of dense blocks are no tensors of the file any more: the states of routers and experts take
/// their place, under their own names.
fn report(module: &Module, cx: &mut PassContext) {
    let names: BTreeSet<&str> = module.states.values().map(|state| state.name.as_str()).collect();
    cx.reports
        .parameters
        .retain(|report| report.states.iter().all(|part| names.contains(part.state.as_str())));
    let told: BTreeSet<String> = cx
        .reports
        .parameters
        .iter()
        .flat_map(|report| &report.states)
        .map(|part| part.state.clone())
        .collect();
    for state in module.states.values().filter(|state| !told.contains(&state.name)) {
        let role = match state.role {
            Role::Parameter => RowRole::Parameter,
            Role::Buffer => RowRole::Buffer,
            _ => continue,
        };
        cx.reports.parameters.push(ParameterReport {
            data: state.name.clone(),
            ty: state.ty.clone(),
            aliases: vec![],
            role,
            frozen: false,
            reason: "--moe made it".into(),
            claim: None,
            states: vec![StateView { state: state.name.clone(), view: View::new() }],
            tied: None,
        });
    }
}

/// Warns if experts choose tokens in a causal model: they compare a token with later tokens.
fn warn_of_later_tokens(module: &Module, cx: &mut PassContext) {
    let is_causal = |op: &Op| matches!(op, Op::Attention(attention) if attention.causal);
    if module.nodes().any(|(_, node)| is_causal(&node.op)) {
        let warning =
            Diagnostic::new("expert-choice lets each token of a causal model depend on later tokens");
        cx.warn(
            warning
                .note("the loss is too good, and generation differs from training; use top=2 in its place"),
        );
    }
}
