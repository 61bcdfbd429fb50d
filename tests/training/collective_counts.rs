//! The number and the bytes of collectives on a mesh: two reductions for each layer and direction over a tensor axis, and the volumes of
//! ZeRO's stages over a data axis.

use ir::ops::collective::Collective;
use ir::{DType, Module, Movement, Node, Op, Phase, Role, State, ValueId};
use passes::optimizer::Optimizer;
use passes::precision::Precision;
use passes::spmd::Spmd;
use passes::{Manager, Pass, Pipeline, Transform};
use std::collections::BTreeSet;
use testing::layers::{Reductions, change, reductions, stored};
use testing::models::{self, Fixture, adamw, done, split};
use trainyard::compilation::Source;
use trainyard::pipeline::CompilationPlan;
use trainyard::training::step;

/// The program after `spmd`, without the later passes.
fn placed(source: &Source, plan: &CompilationPlan, spmd: &str) -> Module {
    let pipeline: Pipeline = spmd.parse().expect("a pipeline");
    let [Pass::Spmd(spmd)] = &pipeline.passes[..] else { panic!("not spmd alone: {pipeline}") };
    let plan = CompilationPlan { spmd: spmd.clone(), ..plan.clone() };
    let mut placed = None;
    done(source.compile(&plan, &Manager::default(), |_, pass, module| {
        if pass == Spmd::NAME {
            placed = Some(module.clone());
        }
    }));
    placed.expect("spmd ran")
}

/// Checks that every layer reduces the results of its attention and of its feed-forward block, and their gradients. Beside the layers there
/// are reductions of the token table, the head and the loss.
fn check_layers(fixture: &Fixture, layers: usize, spmd: &str) {
    let clipped = Optimizer { clip: Some(1.0), ..adamw() };
    let (source, plan) = fixture.source(4, clipped);
    let module = placed(&source, &plan, spmd);
    let found = reductions(&module, &source.imported.aliases, "tp");
    let Reductions { layers: of_layers, embedding, head, loss, gradients, outputs } = &found;
    assert_eq!(of_layers.len(), layers, "{} {spmd}: {found:?}", fixture.file);
    for (layer, counts) in of_layers {
        assert_eq!(*counts, [2, 2], "{} {spmd}: `{layer}` of {found:?}", fixture.file);
    }
    // A model with its own loss need not have logits as an output, so their gather may be missing.
    let reported = module.outputs.iter().filter(|output| module.ty(output.value).ndim() == 3).count();
    assert_eq!(
        (*embedding, *head, *loss, *gradients, *outputs),
        (1, 1, 3, 0, reported),
        "{} {spmd}: {found:?}",
        fixture.file
    );
    check_totals(&module, layers);
}

/// Checks the totals of the collectives, without asking to which part of the model they belong.
fn check_totals(module: &Module, layers: usize) {
    let activation = |phase: Phase| {
        let of_phase = module.nodes().filter(|(_, node)| node.phase == phase);
        let tp = module.mesh.find("tp").expect("an axis");
        let reduces = of_phase.filter(|(_, node)| {
            node.op == Op::Collective(Collective::AllReduce) && change(module, node).axes[..] == [tp]
        });
        let types = reduces.map(|(_, node)| module.ty(node.results[0]));
        types.filter(|ty| ty.ndim() == 3 && !ty.dims[2].is_one()).count()
    };
    assert_eq!(activation(Phase::Forward), 2 * layers + 1, "layers and embedding");
    assert_eq!(activation(Phase::Backward), 2 * layers + 1, "layers and head");
    let update = module.nodes().filter(|(_, node)| node.phase == Phase::Update);
    for (_, node) in update.filter(|(_, node)| matches!(node.op, Op::Collective(_))) {
        let (ty, tp) = (module.ty(node.results[0]), module.mesh.find("tp").expect("an axis"));
        let over_tensor = change(module, node).axes.contains(&tp);
        assert!(!over_tensor || ty.ndim() == 0, "the update reduces squares of norms over tp, and no {ty}");
    }
}

#[test]
fn a_layer_of_gpt2_reduces_twice_forward_and_twice_backward() {
    for fixture in [
        models::GPT2_DYNAMO,
        models::GPT2_OPSET23,
        models::GPT2_LOSS,
        Fixture { file: "gpt2.legacy-mask", ..models::GPT2_DYNAMO },
    ] {
        check_layers(&fixture, 2, "spmd(mesh=tp:2)");
    }
    check_layers(&models::GPT2_DYNAMO, 2, "spmd(mesh=tp:4)");
    check_layers(&models::GPT2_DYNAMO, 2, "spmd(mesh=dp:2*tp:2)");
    check_layers(&models::GPT2_DYNAMO, 2, "spmd(mesh=tp:2*dp:2, zero=1)");
}

#[test]
fn a_layer_of_llama_reduces_twice_forward_and_twice_backward() {
    for fixture in [
        models::LLAMA_DYNAMO,
        models::LLAMA_OPSET23,
        Fixture { file: "llama.legacy-mask", ..models::LLAMA_DYNAMO },
    ] {
        check_layers(&fixture, 2, "spmd(mesh=tp:2)");
    }
    check_layers(&models::LLAMA_DYNAMO, 2, "spmd(mesh=dp:2*tp:2, zero=2)");
}

#[test]
fn in_half_precision_a_layer_reduces_as_often_and_in_half() {
    for fixture in [models::GPT2_DYNAMO, models::LLAMA_DYNAMO, models::BERT_DYNAMO] {
        let (source, plan) = fixture.source(4, adamw());
        let precision = Precision { compute: DType::BF16, ..Precision::default() };
        let module = placed(&source, &CompilationPlan { precision, ..plan }, "spmd(mesh=dp:2*tp:2)");
        check_totals(&module, 2);
        let reduced = module.nodes().filter(|(_, node)| {
            node.phase.is_microbatch() && node.op == Op::Collective(Collective::AllReduce)
        });
        let types = reduced.map(|(_, node)| module.ty(node.results[0]));
        for ty in types.filter(|ty| ty.ndim() == 3 && !ty.dims[2].is_one()) {
            assert_eq!(ty.dtype, DType::BF16, "{}: {ty}", fixture.file);
        }
        // Gradients are summed in f32 and reduced once a step, also the gradient of a tied table.
        let dp = module.mesh.find("dp").expect("an axis");
        let early = module.nodes().filter(|(_, node)| {
            node.phase == Phase::Backward
                && matches!(node.op, Op::Collective(_))
                && change(&module, node).axes.contains(&dp)
        });
        let early: Vec<String> =
            early.map(|(_, node)| format!("{} {}", node.op.name(), module.ty(node.results[0]))).collect();
        assert!(early.is_empty() || fixture.file.starts_with("bert"), "{}: {early:?}", fixture.file);
    }
}

#[test]
fn a_layer_of_bert_reduces_twice_forward_and_twice_backward() {
    check_layers(&models::BERT_DYNAMO, 2, "spmd(mesh=tp:2)");
    check_layers(&models::BERT_DYNAMO, 2, "spmd(mesh=tp:4)");
    check_layers(&models::BERT_DYNAMO, 2, "spmd(mesh=dp:2*tp:2, zero=3)");
}

/// Bytes that a device sends in a step of one microbatch: those of tensors, and those of scalars.
fn sent(module: &Module) -> (u64, u64) {
    let (mut tensors, mut scalars) = (0, 0);
    for (_, node) in module.nodes() {
        let Op::Collective(kind) = node.op else { continue };
        let place = if module.ty(node.results[0]).ndim() == 0 { &mut scalars } else { &mut tensors };
        *place += bytes_sent(module, kind, node);
    }
    (tensors, scalars)
}

/// Bytes that a device sends in a collective.
fn bytes_sent(module: &Module, kind: Collective, node: &Node) -> u64 {
    let local = |value: ValueId| -> u64 {
        let ty = module.ty(value);
        let sizes = ty.local(&module.mesh).expect("it divides");
        sizes.iter().product::<u64>() * ty.dtype.bytes()
    };
    let size = module.mesh.size(&change(module, node).axes);
    // The whole value of a group is the larger side. An all_to_all has a part of it on both sides.
    let larger = local(node.operands[0]).max(local(node.results[0]));
    let bytes = if kind == Collective::AllToAll { larger * size } else { larger };
    kind.bytes_sent(bytes, size)
}

/// Whether a node looks rows up in a table that is split over devices. Then the table is not gathered.
fn is_lookup(module: &Module, node: &Node) -> bool {
    let Op::Gather(gather) = &node.op else { return false };
    !module.ty(node.operands[0]).sharding.axes(gather.dim as usize).is_empty()
}

/// The number of microbatch phases in which nodes need a whole state, through any views.
fn phases_that_gather(module: &Module, state: ValueId) -> u64 {
    let state = stored(module, state);
    let needs = |phase: Phase| {
        let is_view = |op: &Op| op.movement().is_part_of_state() || op.movement() == Movement::Resharded;
        let nodes = module.nodes().map(|(_, node)| node).filter(|node| node.phase == phase);
        let mut nodes = nodes.filter(|node| !is_view(&node.op) && !is_lookup(module, node));
        nodes.any(|node| {
            node.operands.iter().any(|&operand| state.is_some() && stored(module, operand) == state)
        })
    };
    u64::from(needs(Phase::Forward)) + u64::from(needs(Phase::Backward))
}

/// Whether a parameter's new value depends, element by element, on a sum over microbatches. The bias of attention's keys has no gradient:
/// the loss does not depend on it.
fn has_gradient(module: &Module, state: &State) -> bool {
    let mut pending: Vec<ValueId> = state.output.into_iter().collect();
    let mut seen = BTreeSet::new();
    while let Some(value) = pending.pop() {
        if !seen.insert(value) || module.ty(value).dims != state.ty.dims {
            continue;
        }
        match module.producer(value) {
            Some(node) if matches!(node.op, Op::Accumulate(_)) => return true,
            Some(node) if node.phase == Phase::Update => pending.extend(&node.operands),
            _ => {}
        }
    }
    false
}

/// Bytes that a parameter makes a device send, in multiples of (n - 1)/n of its bytes. If the loss depends on it, its gradient is reduced
/// and its new value gathered, or both at once. A parameter that is stored in parts is instead gathered in each phase that needs the whole.
fn shares_sent(module: &Module, state: &State) -> u64 {
    let reduced = u64::from(has_gradient(module, state));
    let gathered =
        if state.ty.sharding.is_whole() { reduced } else { phases_that_gather(module, state.input) };
    reduced + gathered
}

/// Bytes that a device sends for looking rows up in tables that are stored in parts: the indices of all devices, and the found rows.
fn looked_up(module: &Module, share: impl Fn(u64) -> u64) -> u64 {
    let bytes = |value: ValueId| share(module.ty(value).bytes().expect("bound"));
    let lookups = module.nodes().filter(|(_, node)| is_lookup(module, node));
    lookups.map(|(_, node)| bytes(node.operands[1]) + bytes(node.results[0])).sum()
}

/// Checks ZeRO's volumes on four data ranks, to the byte. In stage 3 they are near three times the parameters: biases are gathered once,
/// since backward does not read them, and rows are looked up where they lie, which costs the rows. `tangled` are parameters whose gradients
/// come from one sum, which is reduced for one of them or for both. So their traffic is only bounded, by three times their bytes.
fn check_volumes(fixture: &Fixture, tangled: &[&str]) {
    const RANKS: u64 = 4;
    let share = |bytes: u64| Collective::AllGather.bytes_sent(bytes, RANKS);
    let (source, plan) = fixture.source(4, Optimizer { clip: Some(1.0), ..adamw() });
    for stage in 0..4 {
        let module = placed(&source, &plan, &format!("spmd(mesh=dp:{RANKS}, zero={stage})"));
        let parameters = || module.states.values().filter(|state| state.role == Role::Parameter);
        let bytes = |state: &State| state.ty.bytes().expect("bound");
        let psi: u64 = parameters().map(bytes).sum();
        let (others, own): (Vec<&State>, Vec<&State>) =
            parameters().partition(|state| tangled.contains(&state.name.as_str()));
        let own: u64 = own.into_iter().map(|state| shares_sent(&module, state) * share(bytes(state))).sum();
        let expected = own + looked_up(&module, share);
        let open = 3 * others.into_iter().map(|state| share(bytes(state))).sum::<u64>();
        let (tensors, scalars) = sent(&done(step(&module)));
        let what = format!("{} stage {stage}: {tensors} bytes and {scalars}, of {psi}", fixture.file);
        println!("{what}: {:.4} of them", tensors as f64 / psi as f64);
        assert!((expected..=expected + open).contains(&tensors), "{what}: expected {expected}");
        // The loss, the weight, and the squares of the norms of gradients that are stored in parts.
        let most = 2 + parameters().count() as u64;
        assert!((2..=most).contains(&(scalars / Collective::AllReduce.bytes_sent(4, RANKS))), "{what}");
        let times = tensors as f64 / share(psi) as f64;
        match stage {
            0..=2 => assert!((1.99..=2.02).contains(&times), "{what}: {times}"),
            _ => assert!((2.7..=3.05).contains(&times), "{what}: {times}"),
        }
    }
}

#[test]
fn data_ranks_of_gpt2_send_what_the_stage_of_zero_says() {
    check_volumes(&models::GPT2_DYNAMO, &[]);
}

#[test]
fn data_ranks_of_llama_send_what_the_stage_of_zero_says() {
    check_volumes(&models::LLAMA_DYNAMO, &[]);
}

#[test]
fn data_ranks_of_bert_send_what_the_stage_of_zero_says() {
    // All tokens of the export have one type, so one row gets the sum of the gradients of all positions.
    let tangled = ["m.bert.embeddings.token_type_embeddings.weight", "embedding_2"];
    check_volumes(&models::BERT_DYNAMO, &tangled);
}

/// Each mixture with a capacity sends its slots to the experts and the results back, and the gradients in the other directions. A device
/// sends those slots of its samples that belong to the experts of other devices.
#[test]
fn a_mixture_exchanges_its_slots_twice_forward_and_twice_backward() {
    const EXPERTS: u64 = 8;
    const LAYERS: usize = 2;
    let moe: Pipeline = format!("moe(experts={EXPERTS}, top=2, capacity=1.25)").parse().expect("a pass");
    let [Pass::Moe(moe)] = &moe.passes[..] else { panic!("{moe}") };
    for (mesh, ep) in [("ep:2", 2), ("ep:4", 4), ("dp:2*ep:2", 2), ("ep:2*tp:2", 2)] {
        let (moe, spmd) = (Some(moe.clone()), split(&format!("mesh={mesh}")));
        let plan = CompilationPlan { optimizer: adamw(), moe, spmd, ..CompilationPlan::default() };
        let module = models::GPT2_DYNAMO.compiled(4, plan).compilation.training;
        let samples = if mesh.starts_with("dp") { 1 } else { 4 / ep };
        // 32 tokens of a sample, each with two choices, of 128 numbers of four bytes.
        let slots = (32.0f64 * 2.0 * 1.25 / EXPERTS as f64).ceil() as u64;
        let expected = samples * EXPERTS * slots * 128 * 4 * (ep - 1) / ep;
        for phase in [Phase::Forward, Phase::Backward] {
            let of_phase = module.nodes().map(|(_, node)| node).filter(|node| node.phase == phase);
            let exchanges = of_phase.filter(|node| node.op == Op::Collective(Collective::AllToAll));
            let sent: Vec<u64> =
                exchanges.map(|node| bytes_sent(&module, Collective::AllToAll, node)).collect();
            assert_eq!(sent, [expected; 2 * LAYERS], "{mesh}: {phase:?}");
        }
    }
}
