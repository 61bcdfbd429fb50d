//! `--offload` and `--memory`: runs whose values rest in other memories have the same bits as runs without these flags.

use crate::TRAINYARD;
use expect_test::{Expect, expect};
use testing::workplace::Workplace;

const TRAIN: &str = "--train text.txt --microbatch 2";
const GPT2: &str =
    "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 2 --global-batch 4 --eval-every 5";

/// Ways to use other memories, some with options that give other values to move.
const WAYS: [(&str, &str); 7] = [
    ("", "--offload optimizer"),
    ("", "--offload parameters,gradients"),
    ("--recompute selective", "--offload activations"),
    ("--bf16 --clip 0.1", "--offload optimizer,parameters,gradients,activations"),
    ("--mesh dp=2 --zero 3", "--offload optimizer,parameters"),
    ("--mesh pp=2 --fp16", "--offload optimizer,activations"),
    ("", "--memory host=300KiB,disk=. --offload optimizer,parameters"),
];

/// Runs on one device, or on this number of ranks, whose losses and exports are compared.
#[test]
fn twenty_steps_have_the_same_bits_wherever_values_rest() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    for (number, (options, way)) in WAYS.into_iter().enumerate() {
        let (plain, beside) = (format!("plain{number}"), format!("beside{number}"));
        place.succeed(&format!("{GPT2} {options} --steps 20 -o {plain}"));
        place.succeed(&format!("{GPT2} {options} {way} --offload-least 1B --steps 20 -o {beside}"));
        let losses = |run: &str| {
            let of = |line: serde_json::Value| (line["loss"].to_string(), line["eval_loss"].to_string());
            place.metrics(run).into_iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(losses(&plain), losses(&beside), "{options} {way}");
        let export = |run: &str| place.read(&format!("{run}/model.safetensors"));
        assert!(export(&plain) == export(&beside), "{options} {way}");
    }
}

/// A checkpoint does not depend on the memories in which states rest.
#[test]
fn a_run_goes_on_with_its_states_elsewhere() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let way = "--memory host=300KiB,disk=. --offload optimizer,parameters --offload-least 1B";
    place.succeed(&format!("{GPT2} --steps 20 --save-every 10 -o whole"));
    for (number, (first, second)) in [(way, ""), ("", way)].into_iter().enumerate() {
        let run = format!("parted{number}");
        place.succeed(&format!("{GPT2} {first} --steps 10 --save-every 10 -o {run}"));
        place.succeed(&format!("{GPT2} {second} --steps 20 --save-every 10 -o {run} --resume"));
        assert!(place.states("whole", 20) == place.states(&run, 20), "{first} then {second}");
        assert!(place.read("whole/model.onnx") == place.read(&format!("{run}/model.onnx")));
    }
}

/// The plan of steps of one microbatch, and its bytes in each memory.
fn plan(place: &Workplace, flags: &str) -> (serde_json::Value, [u64; 3]) {
    let run = GPT2.replace("--global-batch 4", "--global-batch 2");
    place.succeed(&format!("{run} {flags} --offload-least 1KiB --steps 2 -o run --force"));
    let plan: serde_json::Value = serde_json::from_slice(&place.read("run/plan.json")).expect("it is JSON");
    let bytes =
        ["peak", "host", "disk"].map(|memory| plan["memory"][memory].as_u64().expect("a number of bytes"));
    (plan, bytes)
}

#[test]
fn a_program_fits_its_budgets_and_uses_them() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let (_, [alone, host, disk]) = plan(&place, "");
    assert_eq!([host, disk], [0, 0]);
    let budget = alone * 6 / 10;
    let fits = |device: u64| budget * 9 / 10 < device && device <= budget;
    let (_, [device, host, disk]) = plan(&place, &format!("--memory device={budget}B,host={alone}B"));
    assert!(fits(device) && 0 < host && host <= alone && disk == 0, "{device} of {budget}, {host}, {disk}");
    let less = host * 2 / 3;
    let (_, [device, host, disk]) = plan(&place, &format!("--memory device={budget}B,host={less}B,disk=."));
    assert!(fits(device) && 0 < host && host <= less && disk > 0, "{device} of {budget}, {host}, {disk}");
}

/// Gradients that wait for the update fit neither the device nor the host, so updates must be early.
#[test]
fn updates_are_early_where_nothing_else_fits() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let one = "--offload optimizer,parameters";
    let (plan_of, [device, host, _]) = plan(&place, &format!("{one} --update early"));
    assert_eq!(plan_of["update"], "early");
    let early = place.read("run/model.safetensors");
    let (late, _) = plan(&place, one);
    assert!(late["update"].is_null(), "{late}");
    let budgets = format!("--memory device={device}B,host={host}B");
    let (searched, _) = plan(&place, &budgets);
    assert_eq!(searched["update"], "early", "{searched}");
    assert!(place.read("run/model.safetensors") == early, "the weights differ");
}

fn check_error(place: &Workplace, flags: &str, expected: Expect) {
    let ended = place.run(&format!("compile testdata/gpt2-fresh.onnx {TRAIN} --steps 1 -o run {flags}"));
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    expected.assert_eq(&ended.errors());
}

#[test]
fn memories_that_are_not_there_are_refused() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let file = "--offload optimizer --offload-least 1B --memory host=300KiB";
    check_error(
        &place,
        &format!("{file},disk=nowhere"),
        expect![[r#"
        error: cannot make a file of 942080 bytes in nowhere: No such file or directory (os error 2)
          = --memory disk=DIR names a folder of this machine with enough room; the last checkpoint is as it was
    "#]],
    );
    check_error(
        &place,
        &format!("{file},disk=.:4KiB"),
        expect![[r#"
        error: --memory host=300KiB,disk=.:4KiB: no program that was found fits
          = the program with the fewest bytes on the device fits --memory device=841792B,host=307008B,disk=.:920KiB, with optimizer beside the device
          = a smaller --microbatch, a mesh of more devices or --zero takes less
    "#]],
    );
    check_error(
        &place,
        "--memory device=1GiB,tape=1GiB",
        expect![[r#"
        error: invalid value 'device=1GiB,tape=1GiB' for '--memory <BYTES|device=BYTES,host=BYTES,disk=DIR[:BYTES]>': `tape` is not a memory; the memories are device, host and disk

        For more information, try '--help'.
    "#]],
    );
    check_error(
        &place,
        "--memory host=4,disk=.",
        expect![[r#"
        error: invalid value 'host=4,disk=.' for '--memory <BYTES|device=BYTES,host=BYTES,disk=DIR[:BYTES]>': `4` is not a number of bytes, such as 6GiB; units are TiB, GiB, MiB, KiB, TB, GB, MB, kB, B

        For more information, try '--help'.
    "#]],
    );
    assert!(!place.path("run/checkpoints").exists());
}
