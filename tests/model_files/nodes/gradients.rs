//! The gradients of a test's model against central finite differences, in f64.
//!
//! Float inputs become parameters. The loss is `Σ weight · output` over the float outputs, with fixed random weights. Its derivative by
//! autodiff's gradients is compared with differences in two random directions. The point is near the test's inputs: at inputs such as 0, 1
//! and 2.5 maxima tie and roundings jump, so each is moved a little. The step of a difference shrinks until two differences agree, since
//! some tests have numbers of 10⁴ in a softmax, or one element of thousands that almost ties. If autodiff refuses (for example, because
//! statistics of a norm are not trained through), only the first output is used.

use super::case::{Case, Set, tensors};
use super::rules;
use ir::interp::{self, Missing, Mode, StateValues, step};
use ir::ops::elementwise::{Binary, Select};
use ir::tensor::Elements;
use ir::{
    Blob, Builder, DType, Data, Initializer, Module, Role, StateId, Tensor, TypeError, ValueId, random,
};
use passes::autodiff;
use std::collections::BTreeMap;

/// Half the distance of the two points of the first difference, for inputs of size 1. Each further step is a quarter of the one before, as
/// long as rounding leaves enough digits.
const FIRST_STEP: f64 = 1e-5;
const STEPS: i32 = 12;
/// The allowed error of a derivative, relative to itself and to the sum of the sizes of its terms.
const RELATIVE: f64 = 1e-5;
const ABSOLUTE: f64 = 1e-7;
const DIRECTIONS: u64 = 2;

/// The outcome of a test's gradients.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The gradients are right, and one is not zero. `first_alone`: the loss has only the first output.
    Right { first_alone: bool },
    /// There is nothing to compare, by the rule of this name.
    Left(&'static str),
    /// The fault.
    Wrong(String),
}

/// The reason why a test has no gradient that differences could be compared with.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
}

/// The rules. Running a test shows whether a rule applies.
pub(crate) const RULES: &[Rule] = &[
    Rule { name: EXCLUDED, why: "excluded above" },
    Rule { name: NO_INPUT, why: "no input has floats" },
    Rule {
        name: KNOWN,
        why: "the number of elements depends on the floats, so a static program has the floats as constants",
    },
    Rule { name: NO_OUTPUT, why: "no float output is computed from a float input" },
    Rule { name: FLAT, why: "the gradient and the differences are zero: signs, roundings, comparisons" },
];

const EXCLUDED: &str = "not compared";
const NO_INPUT: &str = "only integers";
const KNOWN: &str = "known at import";
const NO_OUTPUT: &str = "no float result";
const FLAT: &str = "flat";

/// The reason why there is nothing to compare: a rule, or a fault.
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
    point: Point,
    microbatch: BTreeMap<String, Tensor>,
    /// Whether the loss has only the first output.
    first_alone: bool,
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
        Err(reason) => return Outcome::Wrong(reason),
    };
    match compare(&program, &trained) {
        Ok(true) => Outcome::Right { first_alone: program.first_alone },
        Ok(false) => Outcome::Left(FLAT),
        Err(reason) => Outcome::Wrong(reason),
    }
}

/// The test's model, as a program to differentiate.
fn program(case: &Case, set: &Set) -> Result<Program, Without> {
    let inputs = set.inputs.iter().map(super::case::decode).collect::<Result<Vec<_>, String>>()?;
    let inputs = tensors(&inputs)?;
    let float: Vec<bool> = inputs.iter().map(|input| input.dtype.is_float()).collect();
    if !float.contains(&true) {
        return Err(Without::Rule(NO_INPUT));
    }
    let module = ways(&float).into_iter().find_map(|given| case.module(set, &inputs, &|i| given[i]).ok());
    let mut module = module.ok_or(Without::Rule(KNOWN))?;
    let names: Vec<String> = case.graph().input.iter().map(|input| input.name().to_owned()).collect();
    let microbatch: BTreeMap<String, Tensor> = names.into_iter().zip(inputs).collect();
    let inputs = parameters(&mut module, &microbatch);
    if inputs.is_empty() {
        return Err(Without::Rule(NO_INPUT));
    }
    let (point, mut given) = point(&module, &inputs, &microbatch)?;
    let whole = with_loss(&module, &given)?;
    let first = case.graph().output.first().map_or("", |output| output.name());
    let first_alone = trained(&whole).is_err();
    given.retain(|name, _| !first_alone || name == first);
    let module = if first_alone { with_loss(&module, &given)? } else { whole };
    Ok(Program { module, point, microbatch, first_alone })
}

/// The choices of inputs that stay inputs and are unknown at import, the best first: all, the floats, all but one, one float.
fn ways(float: &[bool]) -> Vec<Vec<bool>> {
    let count = float.len();
    let one = |i: usize| (0..count).map(|j| i == j).collect::<Vec<bool>>();
    let but_one = (0..count).map(|i| one(i).into_iter().map(|is| !is).collect());
    let alone = (0..count).filter(|&i| float[i]).map(one);
    [vec![true; count], float.to_vec()].into_iter().chain(but_one).chain(alone).collect()
}

/// The program, with the weighted sum of its float outputs as its loss.
fn with_loss(module: &Module, given: &BTreeMap<String, Tensor>) -> Result<Module, Without> {
    let mut module = module.clone();
    let loss = loss(&mut module, given).map_err(|error| Without::Wrong(error.message))?;
    if loss.is_some() { Ok(module) } else { Err(Without::Rule(NO_OUTPUT)) }
}

/// Makes the float inputs parameters with the given values.
fn parameters(module: &mut Module, microbatch: &BTreeMap<String, Tensor>) -> Point {
    let mut values = BTreeMap::new();
    let inputs: Vec<(String, ValueId)> =
        module.inputs.iter().map(|input| (input.name.clone(), input.value)).collect();
    let mut b = Builder::new(module, "test");
    for (name, value) in inputs {
        let ty = b.ty(value).clone();
        if let Some(given) = microbatch.get(&name).filter(|given| given.dtype.is_float() && !given.is_empty())
        {
            let state = b.tables().add_state(name, ty, Role::Parameter, Initializer::Zeros);
            let new = b.module().states[state].input;
            b.replace(value, new);
            values.insert(state, given.clone());
        }
    }
    b.finish();
    values
}

/// Values of the parameters, by state.
type Point = BTreeMap<StateId, Tensor>;

/// A point near the inputs, and the outputs there. It is a little nearer to zero, so that elements of at most 1 stay there. If more outputs
/// are finite, the point is a little further from zero instead (acosh is not defined below 1), or has numbers near 1 in place of infinite
/// ones and NaN.
fn point(
    module: &Module,
    inputs: &Point,
    microbatch: &BTreeMap<String, Tensor>,
) -> Result<(Point, BTreeMap<String, Tensor>), String> {
    let at = |near: &Moved| {
        let point = inputs.iter().map(|(&id, tensor)| (id, near(tensor, id.as_u32()))).collect();
        let given = outputs(module, &point, microbatch)?;
        let floats = given.values().filter(|tensor| tensor.dtype.is_float());
        let infinite = floats.flat_map(Tensor::floats).filter(|x| !x.is_finite()).count();
        Ok::<_, String>((infinite, point, given))
    };
    let mut best = at(&|tensor, stream| near(tensor, 0.98, stream))?;
    let others: [&Moved; 2] =
        [&|tensor, stream| near(tensor, 1.01, stream), &|tensor, stream| near(&finite(tensor), 0.98, stream)];
    for other in others {
        if best.0 > 0 {
            let other = at(other)?;
            best = if other.0 < best.0 { other } else { best };
        }
    }
    Ok((best.1, best.2))
}

/// Returns a tensor near another; the second argument is the stream of its random numbers.
type Moved<'a> = dyn Fn(&Tensor, u32) -> Tensor + 'a;

/// The tensor with 1 in place of elements that are not finite.
fn finite(tensor: &Tensor) -> Tensor {
    let elements = tensor.floats().iter().map(|&x| if x.is_finite() { x } else { 1.0 }).collect();
    Tensor::float(tensor.dtype, tensor.sizes.clone(), elements)
}

/// A tensor whose elements are near those of another times a factor, and not zero.
fn near(tensor: &Tensor, factor: f64, stream: u32) -> Tensor {
    let uniform = |i: usize, lane: usize| {
        f64::from(random::philox(11, [i as u32, stream, 0, 0])[lane]) / f64::from(u32::MAX)
    };
    let moved = |(i, &x): (usize, &f64)| x * (factor + 0.01 * uniform(i, 0)) + 1e-3 * (0.1 + uniform(i, 1));
    let elements = tensor.floats().iter().enumerate().map(moved).collect();
    Tensor::float(tensor.dtype, tensor.sizes.clone(), elements)
}

/// The outputs at a point.
fn outputs(
    module: &Module,
    point: &Point,
    microbatch: &BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, Tensor>, String> {
    let message = |error: ir::Diagnostic| error.message;
    let mut states: StateValues = interp::initial_states(module, 0, Missing::Refuse).map_err(message)?;
    states.extend(point.iter().map(|(&id, tensor)| (id, tensor.clone())));
    let outputs =
        step(module, Mode::Exact, &mut states, std::slice::from_ref(microbatch)).map_err(message)?;
    Ok(outputs.into_iter().filter_map(|(name, mut all)| Some((name, all.pop()?))).collect())
}

/// Adds the outputs `loss.sum` and `loss.weight`; `None` if no float output is computed from a parameter. Elements that are not finite at
/// the point do not count.
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
            Some(total) => b.build(total + sum)?,
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

/// Returns whether a value is computed from a parameter through floats.
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
    let data = b.tables().add_data(Data { name, ty: ty.clone(), blob, claim: None });
    b.one_typed(ir::ops::constant::Constant { data }, &[], ty)
}

/// The program with its backward phase.
fn trained(module: &Module) -> Result<Module, String> {
    let mut trained = module.clone();
    let decision = autodiff::decide(&trained).map_err(|error| error.message)?;
    autodiff::apply(&mut trained, &Default::default(), &decision).map_err(|error| error.message)?;
    ir::verify::verify(&trained)
        .map_err(|problems| problems.first().map_or_else(String::new, |problem| problem.message.clone()))?;
    Ok(trained)
}

/// Whether the gradients of `trained` agree with the program's differences, and not all of them are zero.
fn compare(program: &Program, trained: &Module) -> Result<bool, String> {
    let Program { module, point, microbatch, .. } = program;
    let gradients = outputs(trained, point, microbatch)?;
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
        let loss = |by: f64| -> Result<f64, String> {
            let outputs = outputs(module, &moved(point, direction, by), microbatch)?;
            Ok(outputs.get("loss.sum").ok_or("there is no loss")?.item())
        };
        let Difference { limit, noise } = limit(loss)?;
        let error = (derivative - limit).abs();
        let allowed = RELATIVE * limit.abs().max(derivative.abs()) + ABSOLUTE * (1.0 + size) + noise;
        if error.is_nan() || error > allowed {
            return Err(format!("a gradient gives {derivative:.9}, differences give {limit:.9}"));
        }
        some |= size > 0.0;
    }
    Ok(some)
}

/// A derivative by differences.
struct Difference {
    limit: f64,
    /// The error that rounding of the function leaves in the derivative.
    noise: f64,
}

/// The derivative at 0, by central differences with smaller and smaller steps, up to the first two that agree. Both are extrapolated to
/// step 0 (Richardson: the error is proportional to the square of the step). An error says that no two agree.
fn limit(function: impl Fn(f64) -> Result<f64, String>) -> Result<Difference, String> {
    let difference = |i: i32| -> Result<Difference, String> {
        let step = FIRST_STEP * 0.25_f64.powi(i);
        let [before, after] = [function(-step)?, function(step)?];
        let noise = 1e-15 * (after.abs() + before.abs()) / step;
        Ok(Difference { limit: (after - before) / (2.0 * step), noise })
    };
    let mut wider = difference(0)?.limit;
    let mut all = vec![wider];
    for i in 1..STEPS {
        let Difference { limit, noise } = difference(i)?;
        if noise > RELATIVE * (1.0 + limit.abs()) {
            break;
        }
        if (limit - wider).abs() <= RELATIVE * limit.abs() + ABSOLUTE + noise {
            return Ok(Difference { limit: limit + (limit - wider) / 15.0, noise });
        }
        wider = limit;
        all.push(limit);
    }
    Err(format!("the differences have no limit: {all:?}"))
}

/// The element of a direction: as large as that of the point if it is larger than 1; 0 if the point's element is not finite.
fn along(direction: u64, state: StateId, i: usize, x: f64) -> f64 {
    if !x.is_finite() {
        return 0.0;
    }
    random::normal(7 + direction, state.as_u32().into(), i as u64) * x.abs().max(1.0)
}

fn moved(point: &Point, direction: u64, by: f64) -> Point {
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
        let inputs = parameters(&mut module, &microbatch);
        let point: Point = inputs.iter().map(|(&id, tensor)| (id, near(tensor, 0.98, 0))).collect();
        let given = outputs(&module, &point, &microbatch).expect("the program runs");
        loss(&mut module, &given).expect("the loss is well-typed").expect("the output depends on x");
        Program { module, point, microbatch, first_alone: false }
    };
    let (sin, cos) = (program("sin"), program("cos"));
    let [of_sin, of_cos] = [&sin, &cos].map(|program| trained(&program.module).expect("both have gradients"));
    assert_eq!(compare(&sin, &of_sin), Ok(true));
    assert!(compare(&sin, &of_cos).is_err() && compare(&cos, &of_sin).is_err());
}

#[test]
fn a_step_shrinks_until_the_function_is_smooth_within_it() {
    // A kink near the point, and a function that changes within the first step.
    let kink = limit(|x| Ok((x + 3e-7).max(0.0))).expect("it has a derivative");
    assert!((kink.limit - 1.0).abs() < 1e-9, "{}", kink.limit);
    let fast = limit(|x| Ok((1e5 * x + 0.5).sin())).expect("it has a derivative");
    assert!((fast.limit / (1e5 * 0.5_f64.cos()) - 1.0).abs() < 1e-6, "{}", fast.limit);
}

#[test]
fn differences_without_a_limit_are_an_error() {
    for function in [f64::sqrt, f64::cbrt, |x: f64| if x < 0.0 { 0.0 } else { 1.0 }] {
        assert!(limit(|x| Ok(function(x))).is_err());
    }
}
