//! Tests of the text form: printer and parser are exact inverses, and the parser survives any input.

use ir::ops::constant::{Constant, Splat};
use ir::ops::elementwise::{Binary, Unary};
use ir::{
    At, Axis, AxisId, AxisRole, Blob, Builder, DType, Data, Definition, Dim, Initializer, Level, Module, Op,
    PartialKind, Phase, Role, Sharding, Tier, Type, ValueId, ViewStep, testing, text, verify,
};
use proptest::prelude::*;
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;

/// A module with every construct of the grammar, as the printer writes it.
const EVERYTHING: &str = r#"trainyard-ir 1
module @"gpt-2 small" training mesh [dp.outer=2, tp=2, "my axis"=1 expert, cp=3 data] {
  data @0 "val_3" : i64[2] = [-1, 32]
  data @1 "h.0.c_fc" : f32[256, 1024]
  data @2 "odd \"name\"\n\\ \u{7}é" : f32[5] = [0.1, -0.0, inf, -inf, NaN]
  data @3 "nan" : bf16[2] = [0xffc0, 1.5]
  data @4 "flags" : bool[3] = [true, false, 0x02]
  data @5 "long" : u8[66] = hex "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f4041"
  state @h.0.c_fc.weight : f32[512, 256] {tp, -} parameter = data @1 view [transpose [1, 0], slice 0 0 512]
  state @"adam.m(h.0.c_fc.weight)" : f32[512, 256] {tp*cp, dp.outer} optimizer host = zeros
  state @master : f64[512, 256] buffer = copy @h.0.c_fc.weight
  state @step : i64[] counter = splat 3.0
  state @scale : f32[8] scaler = fill NaN data @2 view [pad 0 3, reshape [2, 4], reshape [8], cast bf16]
  state @seed : f32[5] rng = normal 0.02 data @2
  state @drawn : f32[4] buffer = normal 1e-5
  func @train(
    %0 "tokens" batched : i64[8, 4*batch*seq] {dp.outer, -},
    %1 "x" batched : f32[8, 256],
    %2 "odd \u{0}" : f32["a b", 0*n, 1],
    %3 = @h.0.c_fc.weight,
    %4 = @"adam.m(h.0.c_fc.weight)",
    %5 = @master,
    %6 = @step,
    %7 = @scale,
    %8 = @seed,
    %9 = @drawn,
  ) {
    %10 = constant {data = @0} : i64[2] !{prepare, by import}
    %11 = constant {data = @3} : bf16[2] !{prepare, origin "two", by "my pass"}
    %12 = constant {data = @4} : bool[3] !{prepare}
    %13 = constant {data = @5} : u8[66] !{prepare}
    %14 = contract %1, %3 {lhs = az, rhs = kz, out = ak} : f32[8, 512] {dp.outer, tp} partial(sum cp, "my axis") !{fwd, stage 1, copy 2, origin "/h.0/mlp/c_fc", by import}
    %15 = contract %1, %1 {lhs = ab, rhs = ab, out = _} : f32[] partial(max tp) !{fwd}
    %16 = splat {value = NaN} : f32[] !{bwd}
    %17 = splat {value = -inf} : f32[] !{bwd}
    %18 = slice %1 {dim = 0, start = 7, step = -1} : f32[8, 256] !{bwd, copy 1}
    %19 = transpose %1 {permutation = [1, 0]} : f32[256, 8] !{update, stage 3}
    %20 = reduce %1 {kind = sum, dims = [], keep = false} : f32[8, 256] !{update}
    %21 = cast %1 {to = bf16} : bf16[8, 256] !{update}
  }
  output "y" = %14
  output "loss" = %15
  update @master = %5
  update @step = %6
}
"#;

fn round_trip(module: &Module) -> Module {
    let printed = text::print(module);
    let parsed = text::parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(text::print(&parsed), printed);
    parsed
}

#[test]
fn a_text_with_everything_prints_as_it_stands() {
    let module = text::parse(EVERYTHING).unwrap();
    assert_eq!(text::print(&module), EVERYTHING);
    assert_eq!(module.level, Level::Training);
    let scale = &module.states[module.state("scale").unwrap()];
    assert_eq!(scale.view[0], ViewStep::Pad { dim: 0, after: 3 });
    let m = &module.states[module.state("adam.m(h.0.c_fc.weight)").unwrap()];
    assert_eq!((m.tier, m.role, m.output), (Tier::Host, Role::Optimizer, None));
    assert_eq!(module.ty(module.inputs[0].value).dims[1].to_string(), "4*batch*seq");
    let (_, node) = module.nodes().nth(4).unwrap();
    assert_eq!((node.stage, node.copy, &*node.origin, &*node.by), (1, 2, "/h.0/mlp/c_fc", "import"));
    assert_eq!(module.mesh.axes.values().map(|axis| axis.role).collect::<Vec<_>>(), {
        [AxisRole::Data, AxisRole::Tensor, AxisRole::Expert, AxisRole::Data]
    });
}

#[test]
fn line_breaks_and_comments_mean_nothing() {
    let header = "// run: fold\n//\n";
    let spaced = EVERYTHING.replace(", ", "  // a comment, } \" of any kind\n ,").replace("= [", "=[");
    // The replaced separators also occur in strings, so texts are compared after parsing.
    let module = text::parse(&format!("{header}{EVERYTHING}")).unwrap();
    assert_eq!(module, text::parse(EVERYTHING).unwrap());
    assert_eq!(text::parse(&spaced).unwrap(), module);
}

#[test]
fn printing_numbers_densely_and_leaves_out_what_is_dead() {
    let mut module = Module::new("dense");
    let ty = Type::of(DType::F32, &[2]);
    let row = |name: &str| Data {
        name: name.into(),
        ty: ty.clone(),
        blob: Blob::Inline(vec![0; 8].into()),
        claim: None,
    };
    module.add_data(row("dead"));
    let data = module.add_data(row("live"));
    let x = module.add_input("x", ty.clone(), true);
    let mut b = Builder::new(&mut module, "test");
    let dead = b.one(Unary::Neg, &[x]).unwrap();
    let constant = b.one_typed(Constant { data }, &[], ty).unwrap();
    let sum = b.build(constant + x).unwrap();
    b.finish();
    let dead = match module.value(dead).definition {
        Definition::Node(node, _) => node,
        other => panic!("{other:?}"),
    };
    let mut b = Builder::new(&mut module, "test");
    b.remove(dead);
    b.finish();
    module.add_output("y", sum);
    let expected = r#"trainyard-ir 1
module @dense imported {
  data @0 "live" : f32[2] = [0.0, 0.0]
  func @forward(
    %0 "x" batched : f32[2],
  ) {
    %1 = constant {data = @0} : f32[2] !{fwd, by test}
    %2 = add %1, %0 : f32[2] !{fwd, by test}
  }
  output "y" = %2
}
"#;
    assert_eq!(text::print(&module), expected);
    let parsed = round_trip(&module);
    assert!(
        matches!(&parsed.nodes().next().unwrap().1.op, Op::Constant(c) if parsed.data[c.data].name == "live")
    );
}

#[test]
fn numbers_of_a_text_need_not_be_dense() {
    let sparse = r#"trainyard-ir 1 module @m imported {
        data @70 "c" : f32[] = [1.0]
        func @forward() { %4000000000 = constant {data = @70} : f32[] %1 = neg %4000000000 : f32[] }
        output "y" = %1
    }"#;
    let module = text::parse(sparse).unwrap();
    assert!(text::print(&module).contains("%1 = neg %0 : f32[] !{fwd}"));
    round_trip(&module);
}

#[test]
fn an_error_says_where_and_what_was_expected() {
    let cases: &[(&str, &str, &str)] = &[
        (
            "trainyard-ir 1",
            "trainyard-ir 2",
            "expected format version 1, the only version that this compiler reads, found `2`\n  --> line 1, column 14",
        ),
        (
            "training",
            "trained",
            "expected one of `imported`, `training`, `placed`, `lowered`, found `trained`\n  --> line 2, column 23",
        ),
        ("\"val_3\"", "\"val_3", "this string has no closing `\"` on its line\n  --> line 3, column 11"),
        ("i64[2]", "i65[2]", "expected an element type such as `f32`, found `i65`\n  --> line 3, column 21"),
        ("[-1, 32]", "[-1, 32, 3]", "24 bytes are not a tensor of type i64[2]\n  --> line 3, column 30"),
        ("[-1, 32]", "[-1, 0.5]", "`0.5` is not a number of type i64\n  --> line 3, column 35"),
        (
            "4*batch*seq",
            "4*18446744073709551615",
            "this size does not fit in 64 bits\n  --> line 17, column 34",
        ),
        (
            "{tp, -}",
            "{ep, -}",
            "the mesh [dp.outer=2, tp=2, my axis=1, cp=3] has no axis `ep`\n  --> line 9, column 43",
        ),
        (
            "{tp, -}",
            "{tp}",
            "a sharding has a word for every dim, not 1 words for 2 dims\n  --> line 9, column 28",
        ),
        ("tp=2,", "tp=0,", "a mesh cannot have 0 devices along `tp`\n  --> line 2, column 50"),
        ("copy @h.0.c_fc.weight", "copy @h.1", "there is no state `h.1` to copy\n  --> line 11, column 42"),
        (
            "    %9 = @drawn,\n",
            "",
            "state `drawn` is not among the function's parameters\n  --> line 26, column 5",
        ),
        (
            "%15 = contract %1, %1",
            "%15 = contract %1, %99",
            "%99 is not defined before it is used\n  --> line 33, column 24",
        ),
        ("%15 = contract", "%14 = contract", "%14 is defined twice\n  --> line 33, column 5"),
        ("%15 = contract", "%15 = contact", "there is no operator `contact`\n  --> line 33, column 11"),
        (
            "out = _} : f32[]",
            "out = _} : f32[1]",
            "`contract` has the result type f32[], and the text has f32[1]\n  --> line 33, column 5",
        ),
        (
            "{dim = 0, start = 7,",
            "{start = 7,",
            "`slice` needs the attribute `dim`\n  --> line 36, column 11",
        ),
        (
            "{dim = 0, start = 7,",
            "{dim = 0, start = seven,",
            "`seven` is not a value of `slice`'s `start`\n  --> line 36, column 11",
        ),
        (
            "copy 1}",
            "cope 1}",
            "expected one of `stage`, `every`, `copy`, `on`, `origin`, `by`, found `cope`\n  --> line 36, column 73",
        ),
        (
            "update @step = %6\n}",
            "update @step = %6",
            "expected `}`, found the end of the text\n  --> line 45, column 1",
        ),
        ("output \"y\"", "output \"y\" ?", "`?` is not part of a program's text\n  --> line 41, column 14"),
    ];
    let wrong = cases.iter().filter_map(|(from, to, expected)| {
        assert!(EVERYTHING.contains(from), "{from}");
        let error = text::parse(&EVERYTHING.replacen(from, to, 1)).expect_err(to).to_string();
        (error != *expected).then(|| format!("for `{to}`:\n{error}\nnot\n{expected}"))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn what_an_operator_does_not_take_is_an_error_of_the_checked_parser_alone() {
    let wrong = EVERYTHING.replace("rhs = kz, out = ak}", "rhs = zk, out = ak}");
    let error = text::parse(&wrong).unwrap_err().to_string();
    assert_eq!(
        error,
        "contract: `z` has two sizes in f32[8, 256] and f32[512, 256]\n  --> line 32, column 5"
    );
    assert_eq!(text::print(&text::parse_unchecked(&wrong).unwrap()), wrong);
}

/// Compares two modules item by item, without their text.
fn assert_same(a: &Module, b: &Module) {
    assert_eq!((&a.name, a.level, &a.mesh), (&b.name, b.level, &b.mesh));
    let mut values: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    assert_eq!(a.inputs.len(), b.inputs.len());
    for (x, y) in a.inputs.iter().zip(&b.inputs) {
        assert_eq!((&x.name, x.batched, a.ty(x.value)), (&y.name, y.batched, b.ty(y.value)));
        values.insert(x.value, y.value);
    }
    assert_eq!(a.states.len(), b.states.len());
    let data = |m: &Module, i: &Initializer| i.data().map(|id| m.data[id].clone());
    for (x, y) in a.states.values().zip(b.states.values()) {
        assert_eq!((&x.name, &x.ty, x.role, x.tier, &x.view), (&y.name, &y.ty, y.role, y.tier, &y.view));
        assert_eq!(data(a, &x.initializer), data(b, &y.initializer));
        match (&x.initializer, &y.initializer) {
            (Initializer::Data(_), Initializer::Data(_)) => {}
            (Initializer::Normal { std, .. }, Initializer::Normal { std: other, .. }) => {
                assert_eq!(std, other)
            }
            (Initializer::Fill { value, .. }, Initializer::Fill { value: other, .. }) => {
                assert_eq!(value, other)
            }
            (x, y) => assert_eq!(x, y),
        }
        values.insert(x.input, y.input);
    }
    assert_eq!(a.order().len(), b.order().len());
    for ((_, x), (_, y)) in a.nodes().zip(b.nodes()) {
        match (&x.op, &y.op) {
            (Op::Constant(x), Op::Constant(y)) => assert_eq!(a.data[x.data], b.data[y.data]),
            (x, y) => assert_eq!(x, y),
        }
        let renamed: Vec<ValueId> = x.operands.iter().map(|id| values[id]).collect();
        assert_eq!(renamed, y.operands.to_vec());
        assert_eq!(
            (x.phase, x.stage, x.copy, &x.origin, &x.by),
            (y.phase, y.stage, y.copy, &y.origin, &y.by)
        );
        assert_eq!(a.signature(x), b.signature(y));
        values.extend(x.results.iter().copied().zip(y.results.iter().copied()));
    }
    let outputs = |m: &Module| m.outputs.iter().map(|o| (o.name.clone(), o.value)).collect::<Vec<_>>();
    let renamed: Vec<_> = outputs(a).into_iter().map(|(name, id)| (name, values[&id])).collect();
    assert_eq!(renamed, outputs(b));
    let new = |m: &Module| m.states.values().map(|s| s.output).collect::<Vec<_>>();
    assert_eq!(new(a).into_iter().map(|id| id.map(|id| values[&id])).collect::<Vec<_>>(), new(b));
}

/// Makes a random program that also has states, shardings, phases, stages, copies and arbitrary names.
fn decorated(seed: u64, names: &[String]) -> Module {
    let mut module = testing::program(seed, DType::F32, 10);
    let name = |i: usize| format!("{}#{i}", names[i % names.len()]);
    module.name = names[0].clone();
    let axes = [("dp", AxisRole::Data, 2), ("tp", AxisRole::Pipeline, 3), (&*name(1), AxisRole::Context, 1)];
    let axes: Vec<AxisId> =
        axes.map(|(name, role, size)| module.mesh.axes.push(Axis { name: name.into(), role, size })).to_vec();
    let pick = |i: u64| (seed >> (i % 60)) as usize;
    let mut ty = Type::new(
        DType::BF16,
        [Dim::symbol(&name(2)), Dim::known(6), Dim::symbol("n").product(&Dim::known(4)).unwrap()],
    );
    let split = |i: u64| -> SmallVec<[AxisId; 1]> { axes.iter().copied().take(pick(i) % 4).collect() };
    if seed.is_multiple_of(3) {
        ty.sharding = Sharding { dims: smallvec![split(0), split(2), split(4)], partial: None };
        // A sharding that splits nothing prints like no sharding.
        if ty.sharding.is_whole() {
            ty.sharding = Sharding::default();
        }
    }
    if seed.is_multiple_of(2) {
        let kind = [PartialKind::Sum, PartialKind::Max, PartialKind::Min][pick(6) % 3];
        ty.sharding.partial = Some((kind, smallvec![axes[pick(8) % 3], axes[0]]));
    }
    let file = Data {
        name: name(3),
        ty: Type::of(DType::I8, &[3]),
        blob: Blob::File(Some(vec![1, 2, 3].into())),
        claim: None,
    };
    let file = module.add_data(file);
    let initializers = [
        Initializer::Zeros,
        Initializer::Splat(seed),
        Initializer::Normal { std: seed.rotate_left(9), data: Some(file) },
        Initializer::Normal { std: seed.rotate_left(19), data: None },
        Initializer::Fill { value: seed.rotate_left(29), data: file },
        Initializer::Data(file),
    ];
    let mut last = None;
    for (i, initializer) in initializers.into_iter().enumerate() {
        let copied = last.filter(|_| pick(i as u64) % 3 == 0).map(Initializer::CopyOf);
        let id = module.add_state(name(4 + i), ty.clone(), Role::ALL[i].0, copied.unwrap_or(initializer));
        let state = &mut module.states[id];
        state.tier = if pick(i as u64 + 3) % 2 == 0 { Tier::Host } else { Tier::Device };
        state.view = [
            ViewStep::Reshape(smallvec![seed, 1]),
            ViewStep::Transpose(smallvec![]),
            ViewStep::Slice { dim: 1, start: seed, length: 0 },
            ViewStep::Pad { dim: 3, after: seed },
            ViewStep::Cast(DType::ALL[i]),
        ]
        .into_iter()
        .take(pick(i as u64 + 5) % 6)
        .collect();
        state.output = (i % 2 == 0).then_some(state.input);
        last = Some(id);
    }
    module.level = Level::ALL[pick(9) % Level::ALL.len()].0;
    let x = module.inputs[0].value;
    let mut b = Builder::new(&mut module, &names[names.len() - 1]);
    for (i, (phase, _)) in Phase::ALL.into_iter().enumerate() {
        b.at(At::End(phase)).stage(pick(11 + i as u64) as u32 % 5).copy(pick(14) as u32).origin(name(20 + i));
        let scale =
            b.one_typed(Splat { value: f64::from_bits(seed).into() }, &[], Type::scalar(DType::F32)).unwrap();
        b.one(Binary::Mul, &[x, scale]).unwrap();
    }
    b.finish();
    module
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_are_well_formed_and_read_back_as_they_were(seed: u64, steps in 0usize..40) {
        let module = testing::program(seed, DType::F32, steps);
        prop_assert_eq!(verify::verify(&module), Ok(()));
        let parsed = round_trip(&module);
        assert_same(&module, &parsed);
        prop_assert_eq!(verify::verify(&parsed), Ok(()));
    }

    #[test]
    fn every_field_of_a_module_reads_back_as_it_was(seed: u64, names in prop::collection::vec(".*", 1..5)) {
        let module = decorated(seed, &names);
        assert_same(&module, &round_trip(&module));
    }

    #[test]
    fn every_element_of_every_type_reads_back_to_the_bit(bytes in prop::collection::vec(any::<u8>(), 0..640), dtype in 0..DType::ALL.len()) {
        let dtype = DType::ALL[dtype];
        let count = bytes.len() as u64 / dtype.bytes();
        let bytes = bytes[..(count * dtype.bytes()) as usize].to_vec();
        let mut module = Module::new("m");
        let ty = Type::of(dtype, &[count]);
        let data = module.add_data(Data { name: "d".into(), ty: ty.clone(), blob: Blob::Inline(bytes.clone().into()), claim: None });
        let mut b = Builder::new(&mut module, "test");
        b.one_typed(Constant { data }, &[], ty).unwrap();
        b.finish();
        let parsed = round_trip(&module);
        prop_assert_eq!(parsed.data.values().next().unwrap().bytes().unwrap(), &bytes);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "(\\PC|\n){0,200}") {
        let _ = text::parse(&text);
        let _ = text::parse(&format!("trainyard-ir 1\nmodule @m placed {{ {text}"));
    }

    #[test]
    fn no_damage_to_a_text_makes_parser_or_verifier_panic(
        seed in 0u64..1000,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..5), 1..6),
    ) {
        let mut damaged = if seed < 300 { EVERYTHING.to_string() } else { text::print(&testing::program(seed, DType::F32, 12)) };
        for (at, other, how) in edits {
            damaged = damage(&damaged, at, other, how);
        }
        survives(&damaged);
    }
}

/// Cuts a text into words and signs, and repeats, drops, swaps or replaces one of them.
fn damage(text: &str, at: prop::sample::Index, other: prop::sample::Index, how: i32) -> String {
    let mut pieces: Vec<&str> = Vec::new();
    for line in text.split_inclusive('\n') {
        pieces.extend(line.split_inclusive(|c: char| " []{}(),:=*%@\"".contains(c)));
    }
    let (at, other) = (at.index(pieces.len()), other.index(pieces.len()));
    match how {
        0 => drop(pieces.remove(at)),
        1 => pieces.insert(at, pieces[other]),
        2 => pieces.swap(at, other),
        3 => pieces[at] = pieces[other],
        _ => {
            pieces[at] =
                ["18446744073709551615 ", "0, ", "-1 ", "é", "training ", "placed ", "{-} ", "\\"][other % 8]
        }
    }
    pieces.concat()
}

fn survives(text: &str) {
    if let Ok(module) = text::parse(text) {
        round_trip(&module);
        let _ = verify::verify(&module);
    }
    if let Ok(module) = text::parse_unchecked(text) {
        let printed = text::print(&module);
        assert_eq!(text::print(&text::parse_unchecked(&printed).expect(&printed)), printed);
        let _ = verify::verify(&module);
    }
}
