//! Tests of an evaluation whose last batch is short and cannot be filled up.

use super::*;
use crate::evaluate::evaluate;
use cpu::Cpu;
use ranks::Rank;

/// Returns the eval loss of 11 samples in batches of four. The last batch is filled up, or has a program for three samples.
fn eval_loss(gpu: Option<on_gpu::Gpu>, fills: bool) -> f64 {
    let run = Setup { gpu, ..setup() };
    let module = run.train_module();
    let lowered = |module: &Module, states_of| {
        let target = if gpu.is_some() { cuda::TARGET } else { cpu::TARGET };
        Arc::new(lower(module, &LowerOptions { states_of, ..LowerOptions::of(target) }).unwrap())
    };
    let forward = |edits: &[(&str, &str)]| run.module(include_str!("bigram.forward.ir"), edits);
    let train = lowered(&module, None);
    let eval = lowered(&forward(&[]), Some(&*train));
    let short = lowered(&forward(&[("[4, 8", "[3, 8")]), Some(&*train));
    let programs = vec![train, eval, short];
    let mut device = match gpu {
        Some(gpu) => gpu.device(programs),
        None => Box::new(Cpu::new(programs, Some(2)).unwrap()),
    };
    let mut session = Session::new(Rank::alone(&mut *device), ProgramId(0), Some(ProgramId(1))).unwrap();
    session.evaluate_short(ProgramId(2), vec![1.0]).unwrap();
    session.write_states(initial_states(&module, 3, Missing::Refuse, StateBytes::new()).unwrap()).unwrap();
    let eval_text = run.folder.path().join("eval.txt");
    std::fs::write(&eval_text, &std::fs::read(run.corpus()).unwrap()[..11 * SEQUENCE as usize + 1]).unwrap();
    let mut spec = run.spec();
    if let Some(label) = spec.label.as_mut().filter(|_| !fills) {
        label.ignore_index = None;
    }
    let options = LoaderOptions { eval: Some(DataSource::Path(eval_text)), ..LoaderOptions::default() };
    let loader = Loader::new(&spec, &DataSource::Path(run.corpus()), &options).unwrap();
    assert_eq!((loader.eval_samples(), loader.short_evaluation()), (11, if fills { 0 } else { 3 }));
    evaluate(&mut session, &loader, &AtomicBool::new(false), None)
        .unwrap()
        .expect("there is something to evaluate")
}

#[test]
fn a_program_for_the_short_batch_evaluates_what_a_batch_that_is_filled_up_does() {
    let [short, filled] = [false, true].map(|fills| eval_loss(None, fills));
    assert!((short - filled).abs() <= 1e-6, "{short} {filled}");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_gpu_evaluates_a_short_batch_after_the_whole_ones() {
    let [on_gpu, on_processor] = [Some(on_gpu::SOUND), None].map(|gpu| eval_loss(gpu, false));
    assert!((on_gpu - on_processor).abs() <= 1e-4, "{on_gpu} {on_processor}");
}
