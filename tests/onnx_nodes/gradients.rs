//! The gradients of a test's model against central finite differences, in f64.
//!
//! Float inputs become parameters, and `Σ weight · output` over the float outputs, with fixed random weights, the loss.
//! Its derivative by the gradients that autodiff builds is compared with differences in two random directions, at a point
//! near the test's: inputs like 0, 1 and 2.5 are just where maxima tie and roundings jump, so each is moved a little.
//! Where autodiff refuses (statistics of a norm, say, are not trained through) the first output alone is taken.

use super::case::{Case, Set, tensors};
use super::rules;
use ir::interp::{self, Missing, Mode, StateValues, step};
use ir::ops::elementwise::{Binary, Select};
use ir::tensor::Elements;
use ir::{
    Blob, Builder, DType, Data, Initializer, Module, Op, Role, StateId, Tensor, TypeError, ValueId, random,
};
use passes::autodiff;
use std::collections::{BTreeMap, BTreeSet};

/// Half the distance of the two points of a difference, for inputs of size 1.
const STEP: f64 = 1e-5;
/// What a derivative may be off by: of itself, and of the sum of the sizes of its terms.
const RELATIVE: f64 = 1e-5;
const ABSOLUTE: f64 = 1e-7;
const DIRECTIONS: u64 = 2;

/// What became of a test's gradients.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// They are right, and one is not zero.
    Right,
    /// There is nothing to compare, by the rule of this name.
    Left(&'static str),
    /// What is wrong.
    Wrong(String),
}

/// Why a test has no gradient that differences could be compared with.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
}

/// The rules. That one applies is found by running.
pub(crate) const RULES: &[Rule] = &[
    Rule { name: EXCLUDED, why: "left out above, or failed" },
    Rule { name: NO_INPUT, why: "no input is of floats" },
    Rule { name: NO_OUTPUT, why: "no output of floats is computed from an input of floats" },
    Rule {
        name: FLAT,
        why: "the gradient is zero, and so are the differences: signs, roundings, comparisons",
    },
    Rule {
        name: REFUSED,
        why: "autodiff says that an operator has no gradient, and training stops: `mod`, determinants",
    },
];

const EXCLUDED: &str = "not compared";
const NO_INPUT: &str = "integers alone";
const NO_OUTPUT: &str = "no float depends on one";
const FLAT: &str = "flat";
const REFUSED: &str = "refused";

/// Why there is nothing to compare: a rule, or what is wrong.
enum Without {
    Rule(&'static str),
    Wrong(String),
}

impl From<String> for Without {
    fn from(reason: String) -> Self {
        Self::Wrong(reason)
    }
}

/// A program with a scalar output `loss.sum`, and the values of its parameters at the point.
struct Program {
    module: Module,
    point: BTreeMap<StateId, Tensor>,
    microbatch: BTreeMap<String, Tensor>,
}

/// Compares the gradients of a test.
pub(crate) fn check(case: &Case) -> Outcome {
    if rules::excluding(case).is_some() {
        return Outcome::Left(EXCLUDED);
    }
    let program = match case.sets.first().map(|set| program(case, set)) {
        Some(Ok(program)) => program,
        Some(Err(Without::Rule(rule))) => return Outcome::Left(rule),
        Some(Err(Without::Wrong(reason))) => return Outcome::Wrong(reason),
        None => return Outcome::Left(EXCLUDED),
    };
    let trained = match trained(&program.module) {
        Ok(trained) => trained,
        Err(reason) if reason.contains("cannot be trained through") => return Outcome::Left(REFUSED),
        Err(reason) => return Outcome::Wrong(reason),
    };
    match compare(&program, &trained) {
        Ok(true) => Outcome::Right,
        Ok(false) => Outcome::Left(FLAT),
        Err(reason) => Outcome::Wrong(reason),
    }
}

/// The test's model as a program to differentiate.
fn program(case: &Case, set: &Set) -> Result<Program, Without> {
    let inputs = set.inputs.iter().map(super::case::decode).collect::<Result<Vec<_>, String>>()?;
    let inputs = tensors(&inputs)?;
    let float = |i: usize| inputs[i].dtype.is_float();
    let all = |_: usize| true;
    // What is no float may have to be known at import; then perhaps all but the first.
    let ways: [&dyn Fn(usize) -> bool; 3] = [&all, &float, &|i: usize| i == 0];
    let module = ways.into_iter().find_map(|given| case.module(set, &inputs, given).ok());
    let mut module = module.ok_or(Without::Rule(EXCLUDED))?;
    let names: Vec<String> = case.graph().input.iter().map(|input| input.name().to_owned()).collect();
    let microbatch: BTreeMap<String, Tensor> = names.into_iter().zip(inputs).collect();
    let point = parameters(&mut module, &microbatch);
    if point.is_empty() {
        return Err(Without::Rule(NO_INPUT));
    }
    let mut given = outputs(&module, &point, &microbatch)?;
    let whole = with_loss(&module, &given)?;
    let first = case.graph().output.first().map_or("", |output| output.name());
    let refused = trained(&whole).is_err();
    given.retain(|name, _| !refused || name == first);
    let module = if refused { with_loss(&module, &given)? } else { whole };
    Ok(Program { module, point, microbatch })
}

/// The program with the sum of these outputs as its loss.
fn with_loss(module: &Module, given: &BTreeMap<String, Tensor>) -> Result<Module, Without> {
    let mut module = module.clone();
    let loss = loss(&mut module, given).map_err(|error| Without::Wrong(error.message))?;
    if loss.is_some() { Ok(module) } else { Err(Without::Rule(NO_OUTPUT)) }
}

/// Makes the float inputs parameters; their values near those given.
fn parameters(module: &mut Module, microbatch: &BTreeMap<String, Tensor>) -> BTreeMap<StateId, Tensor> {
    let mut point = BTreeMap::new();
    let inputs: Vec<(String, ValueId)> =
        module.inputs.iter().map(|input| (input.name.clone(), input.value)).collect();
    let masks = behind_masks(module);
    let mut b = Builder::new(module, "test");
    for (name, value) in inputs.into_iter().filter(|(_, value)| !masks.contains(value)) {
        let ty = b.ty(value).clone();
        if let Some(given) = microbatch.get(&name).filter(|given| given.dtype.is_float() && !given.is_empty())
        {
            let state = b.tables().add_state(name, ty, Role::Parameter, Initializer::Zeros);
            let new = b.module().states[state].input;
            b.replace(value, new);
            point.insert(state, near(given, state.as_u32().into()));
        }
    }
    b.finish();
    point
}

/// What the masks of attention are made of: the operator has no gradient for its mask, and a mask that may be trained is
/// imported as a formula instead.
fn behind_masks(module: &Module) -> BTreeSet<ValueId> {
    let mut masks = BTreeSet::new();
    for (_, node) in module.nodes().rev() {
        if matches!(node.op, Op::Attention(_)) {
            masks.extend(node.operands.get(3));
        }
        if node.results.iter().any(|result| masks.contains(result)) {
            masks.extend(&node.operands);
        }
    }
    masks
}

/// A point near another, a little nearer to zero (so that what is at most 1 stays so), but not at it.
fn near(tensor: &Tensor, stream: u64) -> Tensor {
    let uniform = |i: usize, lane: usize| {
        f64::from(random::philox(11, [i as u32, stream as u32, 0, 0])[lane]) / f64::from(u32::MAX)
    };
    let moved = |(i, &x): (usize, &f64)| x * (0.98 + 0.01 * uniform(i, 0)) + 1e-3 * (0.1 + uniform(i, 1));
    let elements = tensor.floats().iter().enumerate().map(moved).collect();
    Tensor::float(tensor.dtype, tensor.sizes.clone(), elements)
}

/// The outputs at a point.
fn outputs(
    module: &Module,
    point: &BTreeMap<StateId, Tensor>,
    microbatch: &BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, Tensor>, String> {
    let message = |error: ir::Diagnostic| error.message;
    let mut states: StateValues = interp::initial_states(module, 0, Missing::Refuse).map_err(message)?;
    states.extend(point.iter().map(|(&id, tensor)| (id, tensor.clone())));
    let outputs =
        step(module, Mode::Exact, &mut states, std::slice::from_ref(microbatch)).map_err(message)?;
    Ok(outputs.into_iter().filter_map(|(name, mut all)| Some((name, all.pop()?))).collect())
}

/// Adds the outputs `loss.sum` and `loss.weight`; nothing if no float output is computed from a parameter. Elements that
/// are not finite at the point count nothing.
fn loss(module: &mut Module, given: &BTreeMap<String, Tensor>) -> Result<Option<()>, TypeError> {
    let dependent = dependent(module);
    let floats: Vec<(String, ValueId)> = module
        .outputs
        .iter()
        .filter(|output| module.ty(output.value).dtype.is_float() && dependent(output.value))
        .map(|output| (output.name.clone(), output.value))
        .collect();
    let mut b = Builder::new(module, "test");
    let mut total = None;
    for (i, (name, value)) in floats.into_iter().enumerate() {
        let Some(tensor) = given.get(&name).filter(|tensor| !tensor.is_empty()) else { continue };
        let finite: Vec<bool> = tensor.floats().iter().map(|x| x.is_finite()).collect();
        let weights = (0..tensor.len()).map(|j| random::normal(5, i as u64, j as u64)).collect();
        let weights = constant(&mut b, Tensor::float(DType::F64, tensor.sizes.clone(), weights))?;
        let mut y = b.cast(value, DType::F64)?;
        if finite.contains(&false) {
            let finite = constant(&mut b, Tensor::bool(tensor.sizes.clone(), finite))?;
            let zero = b.splat_like(y, 0.0)?;
            y = b.one(Select, &[finite, y, zero])?;
        }
        let product = b.one(Binary::Mul, &[y, weights])?;
        let dims: Vec<u32> = (0..tensor.sizes.len() as u32).collect();
        let sum = b.sum(product, &dims)?;
        total = Some(match total {
            Some(total) => b.add(total, sum)?,
            None => sum,
        });
    }
    let weight = b.scalar(DType::F64, 1.0)?;
    b.finish();
    let Some(total) = total else { return Ok(None) };
    module.outputs.clear();
    module.add_output("loss.sum", total);
    module.add_output("loss.weight", weight);
    Ok(Some(()))
}

/// Which values are computed from a parameter, by way of floats.
fn dependent(module: &Module) -> impl Fn(ValueId) -> bool + use<> {
    let mut depends = vec![false; module.value_count()];
    module.states.values().for_each(|state| depends[state.input.as_u32() as usize] = true);
    for (_, node) in module.nodes() {
        if node.operands.iter().any(|value| depends[value.as_u32() as usize]) {
            for result in node.results.iter().filter(|&&result| module.ty(result).dtype.is_float()) {
                depends[result.as_u32() as usize] = true;
            }
        }
    }
    move |value| depends[value.as_u32() as usize]
}

fn constant(b: &mut Builder, tensor: Tensor) -> Result<ValueId, TypeError> {
    let (ty, name) = (tensor.ty(), format!("test.{}", b.module().data.len()));
    let blob = Blob::Inline(tensor.to_bytes().into());
    let data = b.tables().add_data(Data { name, ty: ty.clone(), blob });
    b.one_typed(ir::ops::constant::Constant { data }, &[], ty)
}

/// The program with its backward phase.
fn trained(module: &Module) -> Result<Module, String> {
    let mut trained = module.clone();
    let decision = autodiff::decide(&trained).map_err(|error| error.message)?;
    autodiff::apply(&mut trained, &decision).map_err(|error| error.message)?;
    ir::verify::verify(&trained)
        .map_err(|problems| problems.first().map_or_else(String::new, |problem| problem.message.clone()))?;
    Ok(trained)
}

/// Whether the gradients that `trained` computes say what the program's differences say, and some of it is not zero.
fn compare(program: &Program, trained: &Module) -> Result<bool, String> {
    let Program { module, point, microbatch } = program;
    let gradients = outputs(trained, point, microbatch)?;
    let loss = |point: &BTreeMap<StateId, Tensor>| -> Result<f64, String> {
        Ok(outputs(module, point, microbatch)?.get("loss.sum").ok_or("there is no loss")?.item())
    };
    let mut some = false;
    for direction in 0..DIRECTIONS {
        let (mut derivative, mut size) = (0.0, 0.0);
        for (&id, tensor) in point {
            let Some(gradient) = gradients.get(&format!("grad.{}", module.states[id].name)) else { continue };
            for (i, (&gradient, &x)) in gradient.floats().iter().zip(tensor.floats()).enumerate() {
                let term = gradient * along(direction, id, i, x);
                derivative += term;
                size += term.abs();
            }
        }
        let moved = |by: f64| loss(&moved(point, direction, by));
        let [before, after] = [moved(-STEP)?, moved(STEP)?];
        let difference = (after - before) / (2.0 * STEP);
        // Rounding of the loss itself, over the step.
        let noise = 1e-15 * (after.abs() + before.abs()) / STEP;
        let error = (derivative - difference).abs();
        let allowed = RELATIVE * difference.abs().max(derivative.abs()) + ABSOLUTE * (1.0 + size) + noise;
        if error.is_nan() || error > allowed {
            return Err(format!("a gradient gives {derivative:.9}, differences give {difference:.9}"));
        }
        some |= size > 0.0;
    }
    Ok(some)
}

/// The element of a direction: as large as that of the point, where that is larger than 1; 0 where it is not finite.
fn along(direction: u64, state: StateId, i: usize, x: f64) -> f64 {
    if !x.is_finite() {
        return 0.0;
    }
    random::normal(7 + direction, state.as_u32().into(), i as u64) * x.abs().max(1.0)
}

fn moved(point: &BTreeMap<StateId, Tensor>, direction: u64, by: f64) -> BTreeMap<StateId, Tensor> {
    let shift = |(&id, tensor): (&StateId, &Tensor)| {
        let shifted = |(i, &x): (usize, &f64)| x + by * along(direction, id, i, x);
        let elements = Elements::Float(tensor.floats().iter().enumerate().map(shifted).collect());
        (id, Tensor { elements, ..tensor.clone() })
    };
    point.iter().map(shift).collect()
}

#[test]
fn a_wrong_gradient_is_found() {
    let program = |function: &str| {
        let text = format!(
            "trainyard-ir 1
module @m imported {{
  func @forward(%0 \"x\" : f64[3]) {{
    %1 = {function} %0 : f64[3] !{{fwd}}
  }}
  output \"y\" = %1
}}"
        );
        let mut module = ir::text::parse(&text).expect("the text is a program");
        let x = Tensor::float(DType::F64, vec![3], vec![0.1, 0.7, 2.0]);
        let microbatch = BTreeMap::from([("x".to_owned(), x)]);
        let point = parameters(&mut module, &microbatch);
        let given = outputs(&module, &point, &microbatch).expect("the program runs");
        loss(&mut module, &given).expect("the loss is well-typed").expect("the output depends on x");
        Program { module, point, microbatch }
    };
    let (sin, cos) = (program("sin"), program("cos"));
    let [of_sin, of_cos] = [&sin, &cos].map(|program| trained(&program.module).expect("both have gradients"));
    assert_eq!(compare(&sin, &of_sin), Ok(true));
    assert!(compare(&sin, &of_cos).is_err() && compare(&cos, &of_sin).is_err());
}
