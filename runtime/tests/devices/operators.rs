//! Every operator's kernel on the samples, laid out in several ways.

use crate::compare::{Microbatch, assert_agrees, assert_agrees_in, unit};
use ir::interp::Mode;
use ir::ops::elementwise::Unary;
use ir::ops::samples::{Sample, samples};
use ir::ops::shape::Transpose;
use ir::ops::softmax::SoftmaxGrad;
use ir::{At, Builder, DType, Dim, Inference, Module, Op, Operator, Phase, Tensor, Type, ValueId};
use runtime::lower::LowerOptions;

/// How the operands of a sample reach it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Through {
    /// As inputs.
    Inputs,
    /// As inputs with all dims in reverse order, transposed back: strided.
    Transposes,
    /// Through two negations: results that die at the operator, so that it may take their place.
    Negations,
}

/// A program that runs a sample's operator, and its inputs.
pub(crate) fn program(sample: &Sample, through: Through) -> (Module, Microbatch) {
    let (mut module, mut inputs) = (Module::new("sample"), Microbatch::new());
    module.data = sample.data.clone();
    add(&mut module, &mut inputs, "", sample, through);
    (module, inputs)
}

/// Adds a sample's operator to a program whose data table is the sample's, or is not looked at by it; names begin with
/// `prefix`.
pub(crate) fn add(
    module: &mut Module,
    inputs: &mut Microbatch,
    prefix: &str,
    sample: &Sample,
    through: Through,
) {
    let mut values = Vec::new();
    for (i, tensor) in sample.fill(5).into_iter().enumerate() {
        let reversed = through == Through::Transposes && tensor.sizes.len() > 1;
        let tensor = if reversed { mirrored(&tensor) } else { tensor };
        let name = format!("{prefix}operand.{i}");
        values.push((module.add_input(&name, tensor.ty(), false), reversed));
        inputs.insert(name, tensor);
    }
    let mut b = Builder::new(module, "test");
    let operands: Vec<ValueId> =
        values.into_iter().map(|(value, reversed)| operand(&mut b, value, reversed, through)).collect();
    if matches!(sample.op, Op::Accumulate(_)) {
        b.at(At::End(Phase::Update));
    }
    let results =
        b.push_typed(sample.op.clone(), &operands, &sample.declared).expect("samples are well-typed");
    b.finish();
    for (i, result) in results.into_iter().enumerate() {
        module.add_output(format!("{prefix}result.{i}"), result);
    }
}

fn operand(b: &mut Builder, value: ValueId, reversed: bool, through: Through) -> ValueId {
    let ty = b.ty(value).clone();
    if reversed {
        let permutation = (0..ty.ndim() as u32).rev().collect();
        return b.one(Transpose { permutation }, &[value]).expect("a permutation");
    }
    if through != Through::Negations {
        return value;
    }
    let negation = if ty.dtype == DType::Bool { Unary::Not } else { Unary::Neg };
    let once = b.one(negation, &[value]).expect("negation takes all types");
    b.one(negation, &[once]).expect("negation takes all types")
}

/// The tensor with its dims in reverse order.
fn mirrored(tensor: &Tensor) -> Tensor {
    let mut module = Module::new("mirror");
    let x = module.add_input("x", tensor.ty(), false);
    let mut b = Builder::new(&mut module, "test");
    let permutation: Vec<u32> = (0..tensor.sizes.len() as u32).rev().collect();
    let y = b.transpose(x, &permutation).expect("a permutation");
    b.finish();
    module.add_output("y", y);
    let inputs = Microbatch::from([("x".to_string(), tensor.clone())]);
    let mut outputs = ir::interp::step(&module, ir::interp::Mode::Exact, &mut Default::default(), &[inputs])
        .expect("it runs");
    outputs.remove("y").expect("the output").remove(0)
}

/// The sample with what is f32 in this type instead, its constants rounded to it: all operands, or all but the one
/// that stays f32 (the gradient of a sum).
pub(crate) fn retyped(sample: &Sample, dtype: DType) -> Sample {
    let kept = std::iter::once(None).chain((0..sample.operands.len()).map(Some));
    let mut retyped = kept.map(|kept| with_operands(sample.clone(), dtype, kept));
    let fits = |sample: &Sample| {
        let types: Vec<Type> = sample.fill(5).iter().map(Tensor::ty).collect();
        sample.op.infer(&Inference { operands: &types, declared: &sample.declared }).is_ok()
    };
    retyped.find(fits).unwrap_or_else(|| panic!("`{}` takes no {dtype}", sample.op.name()))
}

fn with_operands(mut sample: Sample, dtype: DType, kept: Option<usize>) -> Sample {
    let operands = sample.operands.iter_mut().enumerate().filter(|(index, _)| Some(*index) != kept);
    let types = sample.declared.iter_mut().chain(operands.map(|(_, operand)| &mut operand.ty));
    types.filter(|ty| is_single(ty)).for_each(|ty| ty.dtype = dtype);
    for data in sample.data.values_mut().filter(|data| data.ty.dtype == DType::F32) {
        let tensor = ir::interp::file_tensor(data).expect("samples have their bytes");
        data.ty.dtype = dtype;
        data.blob = ir::Blob::Inline(Tensor { dtype, ..tensor }.to_bytes().into());
    }
    sample
}

fn check(through: Through, options: &LowerOptions) {
    for sample in samples() {
        check_sample(&sample, through, options);
        if sample.operands.iter().map(|operand| &operand.ty).chain(&sample.declared).any(is_single) {
            for half in [DType::F16, DType::BF16] {
                check_sample(&retyped(&sample, half), through, options);
            }
        }
    }
}

pub(crate) fn is_single(ty: &Type) -> bool {
    ty.dtype == DType::F32
}

fn check_sample(sample: &Sample, through: Through, options: &LowerOptions) {
    let (module, inputs) = program(sample, through);
    let values = module.nodes().flat_map(|(_, node)| node.operands.iter().chain(&node.results));
    let types: Vec<DType> = values.map(|&value| module.ty(value).dtype).collect();
    let half = types.iter().any(|dtype| matches!(dtype, DType::F16 | DType::BF16));
    let single = types.contains(&DType::F32);
    let result = std::panic::catch_unwind(|| {
        let steps = [vec![inputs]];
        match half {
            true => assert_agrees_in(Mode::Typed, &module, options, &steps, unit),
            false => assert_agrees(&module, options, &steps, if single { 4e-6 } else { 1e-11 }),
        }
    });
    if let Err(panic) = result {
        let types: Vec<String> = sample.operands.iter().map(|operand| operand.ty.to_string()).collect();
        println!("`{}` {:?} on {types:?}, {through:?}", sample.op.name(), sample.op);
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn every_kernel_agrees_with_the_interpreter() {
    check(Through::Inputs, &LowerOptions::default());
}

#[test]
fn kernels_read_transposed_operands() {
    check(Through::Transposes, &LowerOptions::default());
}

#[test]
fn kernels_take_the_place_of_dying_operands() {
    check(Through::Negations, &LowerOptions { unfused: true, ..LowerOptions::default() });
    check(Through::Negations, &LowerOptions::default());
}

#[test]
fn a_contraction_of_any_order_of_labels_agrees() {
    use ir::ops::contract::Contract;
    let sizes = |label: u8| [2, 3, 4, 5, 2, 3][(label - b'a') as usize];
    for text in [
        "abc,cd->abd",
        "bac,dc->dab",
        "acb,cdb->ad",
        "abcd,abed->abce",
        "abcd,aebd->acbe",
        "abef,abef->ab",
        "ab,ab->",
        "a,b->ba",
        "abc,->cab",
        "bdac,ecdf->fbea",
    ] {
        let contract = Contract::new(text);
        let mut module = Module::new("contract");
        let mut inputs = Microbatch::new();
        let mut add = |name: &str, labels: &ir::ops::Labels| {
            let ty = Type::new(DType::F64, labels.0.iter().map(|&l| Dim::known(sizes(l))));
            let sizes: Vec<usize> =
                ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
            let elements = (0..sizes.iter().product())
                .map(|i: usize| ir::random::normal(3, name.len() as u64, i as u64))
                .collect();
            inputs.insert(name.into(), Tensor::float(DType::F64, sizes, elements));
            module.add_input(name, ty, false)
        };
        let operands = [add("lhs", &contract.lhs), add("other", &contract.rhs)];
        let mut b = Builder::new(&mut module, "test");
        let out = b.one(contract, &operands).expect(text);
        b.finish();
        module.add_output("out", out);
        assert_agrees(&module, &LowerOptions::default(), &[vec![inputs]], 1e-13);
    }
}

/// Rows of NaN are those of which everything was masked.
#[test]
fn a_softmax_of_which_nothing_is_read_has_the_gradient_zero() {
    let nan = f64::NAN;
    let y = [nan, nan, nan, nan, nan, nan, 0.25, 0.5, 0.25];
    let dy = [0.0, 0.0, -0.0, 0.0, 2.0, 0.0, 1.0, 2.0, 4.0];
    for through in [Through::Inputs, Through::Transposes, Through::Negations] {
        let (mut module, mut inputs) = (Module::new("masked"), Microbatch::new());
        let reversed = through == Through::Transposes;
        let values = [("y", y), ("dy", dy)].map(|(name, elements)| {
            let tensor = Tensor::float(DType::F32, vec![3, 3], elements.to_vec());
            let tensor = if reversed { mirrored(&tensor) } else { tensor };
            let value = module.add_input(name, tensor.ty(), false);
            inputs.insert(name.into(), tensor);
            value
        });
        let mut b = Builder::new(&mut module, "test");
        let operands = values.map(|value| operand(&mut b, value, reversed, through));
        let dx = b.one(SoftmaxGrad { dim: 1 }, &operands).expect("well-typed");
        b.finish();
        module.add_output("dx", dx);
        let steps = [vec![inputs]];
        let outputs = ir::interp::step(&module, Mode::Exact, &mut Default::default(), &steps[0]);
        let dx = &outputs.expect("it runs")["dx"][0];
        assert_eq!(dx.floats()[..3], [0.0; 3]);
        assert!(dx.floats()[3..6].iter().all(|x| x.is_nan()), "{dx:?}");
        for unfused in [false, true] {
            assert_agrees(&module, &LowerOptions { unfused, ..LowerOptions::default() }, &steps, 1e-7);
        }
    }
}
