//! Half precision on the CPU backend: results are near the interpreter, which rounds each value, and a trained model is near fp32.

use crate::TRAINYARD;
use cpu::Bf16Products;
use testing::models::half::check_half;
use testing::models::{BERT_DYNAMO, GPT2_DYNAMO, LLAMA_DYNAMO};
use testing::workplace::Workplace;
use trainyard::verification::Mode;

#[test]
fn gpt2_in_half_is_what_the_interpreter_rounds() {
    check_half(&GPT2_DYNAMO, Mode::On(cpu::TARGET));
}

#[test]
fn llama_in_half_is_what_the_interpreter_rounds() {
    check_half(&LLAMA_DYNAMO, Mode::On(cpu::TARGET));
}

#[test]
fn bert_in_half_is_what_the_interpreter_rounds() {
    check_half(&BERT_DYNAMO, Mode::On(cpu::TARGET));
}

#[test]
fn bf16_by_instructions_is_what_the_interpreter_rounds() {
    check_half(&GPT2_DYNAMO, Mode::On(cpu::AMX));
    check_half(&GPT2_DYNAMO, Mode::On(cpu::AVX512));
}

/// A processor without the instructions refuses the device, and another one trains.
#[test]
fn a_device_that_the_processor_lacks_is_refused() {
    for products in [Bf16Products::Amx, Bf16Products::Avx512] {
        let (place, device) = (Workplace::new(TRAINYARD), products.target().name());
        let command = format!(
            "compile testdata/models/mlp.dynamo.onnx --train synthetic --steps 2 --bf16 --device {device} -o run"
        );
        if products.is_here() {
            let told = place.succeed(&command).stderr;
            assert!(told.contains(&format!("device: {device}\n")), "{told}");
            assert_eq!(place.metrics("run").len(), 2);
        } else {
            let ended = place.run(&command);
            let told = ended.stderr;
            assert_eq!(ended.status.code(), Some(2), "{told}");
            assert!(told.contains(&format!("error: --device {device}: this processor has no")), "{told}");
            assert!(told.contains("--device cpu runs on every processor"), "{told}");
        }
    }
}

/// The README's model and text, with a learning rate at which rounding does not lead to another result.
const RUN: &str = "compile testdata/gpt2-bytes.onnx --train testdata/kjv.txt --eval eval.txt --microbatch 4 --steps 200 \
                   --lr 1e-3 --lr-schedule cosine:warmup=20 --optimizer adamw:beta2=0.95 --weight-decay 0.1 --clip 1";

#[test]
#[ignore = "night: half"] // three runs of 200 steps
fn a_model_of_bytes_learns_as_much_in_half_precision() {
    let place = Workplace::new(TRAINYARD);
    place.write("eval.txt", &place.read("testdata/kjv.txt")[..2000]);
    let [plain, bf16, fp16] = ["fp32", "bf16", "fp16"].map(|precision| {
        place.succeed(&format!("{RUN} --precision {precision} -o {precision}"));
        let metrics = place.metrics(precision);
        assert_eq!(metrics.len(), 200);
        let loss = |step: &serde_json::Value| step["loss"].as_f64().expect("a loss");
        assert!(loss(&metrics[199]) < 0.8 * loss(&metrics[0]), "{precision} does not learn");
        let end = metrics[180..].iter().map(loss).sum::<f64>() / 20.0;
        println!("{precision}: {end}");
        end
    });
    for (name, loss) in [("bf16", bf16), ("fp16", fp16)] {
        assert!((loss - plain).abs() <= 0.01 * plain, "{name} ends at {loss}, fp32 at {plain}");
    }
}
