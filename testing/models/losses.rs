//! A compiled model's losses against the 20 that PyTorch computed.

use super::{Bounds, Fixture, adamw, done, momentum, path};
use cuda::device::Cuda;
use cuda::host::{Host, Order};
use ir::{Module, Tensor, Type};
use passes::optimizer::Optimizer;
use ranks::Ranks;
use trainyard::verification::Mode;
use trainyard::verification::Subject;
use trainyard::verification::against::{self, file::Numbers};
use trainyard::verification::execute::{Machine, Tensors};

/// A machine for a program in a mode. On the stand-in of one GPU, each command is checked against the memory that it declares.
pub fn machine<'m>(module: &'m Module, mode: Mode, microbatches: usize, start: &Tensors) -> Machine<'m> {
    if mode != Mode::On(cuda::TARGET) || module.ranks() > 1 {
        return done(Machine::new(module, mode, microbatches, start));
    }
    done(Machine::on(module, cuda::TARGET, microbatches, start, |programs| {
        let programs = vec![programs.first().clone()];
        Ok(Ranks::alone(Box::new(Cuda::new(Host::new(Order::default()).checked(), programs)?)))
    }))
}

/// The optimizers of PyTorch's losses, and the bounds of the first ten losses and of the last ten in a mode.
pub fn optimizers(bounds: &Bounds, mode: Mode) -> [(&'static str, Optimizer, [f64; 2]); 2] {
    let [sgd, adamw_losses] = match mode {
        Mode::Exact => bounds.exact.map(|bound| [bound; 2]),
        _ => [[bounds.sgd; 2], bounds.adamw],
    };
    [("adamw", adamw(), adamw_losses), ("sgd_momentum", momentum(), sgd)]
}

/// The numbers of one of the model's files. If PyTorch ran the model without the mask that the export takes, the mask shows all tokens.
pub fn numbers(fixture: &Fixture, subject: &Subject, kind: &str) -> Numbers {
    let module = &subject.compilation.training;
    let label = done(against::label_name(module));
    let file = path(&format!("{}.{kind}.npz", fixture.model));
    let mut numbers = done(Numbers::read(&file, module, label.as_deref()));
    for input in module.inputs.iter().filter(|input| input.name == "attention_mask") {
        let ty = module.ty(input.value);
        let sizes = ty.sizes().expect("all dims are bound").into_iter().map(|size| size as usize);
        let ones = Tensor::splat(ty.dtype, sizes.collect(), 1.0);
        numbers.inputs.entry(input.name.clone()).or_insert(ones);
    }
    repeat(&mut numbers, module);
    numbers
}

/// If a microbatch has more samples than PyTorch's batch, each sample is repeated equally often, so their mean loss stays the same.
fn repeat(numbers: &mut Numbers, module: &Module) {
    for input in module.inputs.iter().filter(|input| input.batched) {
        let ty = module.ty(input.value);
        let (Some(given), Some(sizes)) = (numbers.inputs.get_mut(&input.name), ty.sizes()) else { continue };
        let times = sizes[0] as usize / given.sizes[0].max(1);
        if times > 1 {
            let ty = Type::of(given.dtype, &sizes);
            let whole = Tensor::from_bytes(&ty, &given.to_bytes().repeat(times));
            *given = whole.expect("the samples divide the microbatch");
        }
    }
}

/// Checks each of 20 losses, before each step, against PyTorch's: within the bound of the first ten or of the last ten.
pub fn check_losses(fixture: &Fixture, subject: &Subject, mode: Mode, key: &str, bounds: [f64; 2]) {
    let expected = losses(fixture, key);
    let numbers = numbers(fixture, subject, "train");
    let module = &subject.compilation.training;
    let label = done(against::label_name(module));
    let inputs = done(against::microbatches(module, &numbers, label.as_deref()));
    let mut machine = machine(module, mode, inputs.len(), &subject.start);
    let mut worst = 0.0f64;
    for (step, expected) in expected.iter().enumerate() {
        let loss = done(machine.step(&inputs)).loss().expect("a step has a loss");
        let apart = (loss - expected).abs();
        assert!(
            apart <= bounds[step / 10],
            "{}: {key}[{step}] is {expected}, ours {loss}, {apart:.1e} apart",
            fixture.file
        );
        worst = worst.max(apart);
    }
    let mesh = &module.mesh;
    println!("{}: {key} within {worst:.1e} in mode {} on {mesh}", fixture.file, mode.name());
}

/// PyTorch's losses.
pub fn losses(fixture: &Fixture, key: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(path(&format!("{}.train.json", fixture.model)))
        .expect("the fixture is there");
    let json: serde_json::Value = serde_json::from_str(&text).expect("the fixture is JSON");
    let list = json[key].as_array().unwrap_or_else(|| panic!("no {key}"));
    assert_eq!(list.len(), 20);
    list.iter().map(|loss| loss.as_f64().expect("a loss is a number")).collect()
}
