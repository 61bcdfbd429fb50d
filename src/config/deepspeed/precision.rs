//! The element types, and the scale of the loss in fp16.

use ir::Diagnostic;

use super::super::precision::PrecisionChoice;
use super::Translation;
use super::document::Leaf;

const LOSS_SCALE: &str = "fp16.loss_scale";
const POWER: &str = "fp16.initial_scale_power";
const WINDOW: &str = "fp16.loss_scale_window";
const HYSTERESIS: &str = "fp16.hysteresis";
const LEAST: &str = "fp16.min_loss_scale";

/// Names of types, in a file and for `--grad-dtype`.
const TYPES: [(&str, &str); 7] = [
    ("fp32", "f32"),
    ("fp16", "f16"),
    ("bf16", "bf16"),
    ("float32", "f32"),
    ("float16", "f16"),
    ("bfloat16", "bf16"),
    ("half", "f16"),
];

/// `--fp16`, `--bf16`, `--loss-scale` and `--grad-dtype`.
pub(super) fn translate(translation: &mut Translation) {
    let of_file = compute(translation);
    if let Some((flag, leaf)) = of_file {
        translation.switch_on(flag, leaf);
    }
    let line = translation.line;
    let given = match (line.gives("bf16"), line.gives("fp16")) {
        (true, _) => Some(PrecisionChoice::Bf16),
        (_, true) => Some(PrecisionChoice::Fp16),
        _ => line.value("precision"),
    };
    let computes_in_fp16 = match given {
        Some(choice) => choice == PrecisionChoice::Fp16,
        None => matches!(of_file, Some(("fp16", _))),
    };
    if computes_in_fp16 {
        loss_scale(translation);
    }
    gradients(translation);
}

/// The flag of the type that a step computes in, with its key. Two types are an error, unless the command line gives one.
fn compute<'a>(translation: &mut Translation<'a>) -> Option<(&'static str, &'a Leaf)> {
    let document = translation.document;
    let on = |path: &str| document.leaf(path).filter(|_| document.is_on(path));
    let autocast = on("torch_autocast.enabled");
    let half = ["float16", "fp16", "half", "torch.float16"];
    let is_half = document.text("torch_autocast.dtype").is_some_and(|dtype| half.contains(&dtype));
    let found = [
        ("fp16", on("fp16.enabled")),
        ("bf16", on("bf16.enabled").or(on("bfloat16.enabled"))),
        (if is_half { "fp16" } else { "bf16" }, autocast),
    ];
    let mut found = found.into_iter().filter_map(|(flag, leaf)| Some((flag, leaf?)));
    let first = found.next()?;
    let is_given = ["bf16", "fp16", "precision"].iter().any(|flag| translation.line.gives(flag));
    if let Some((_, other)) = found.find(|(flag, _)| *flag != first.0 && !is_given) {
        let message = format!("`{}` and `{}` exclude each other", first.1.path, other.path);
        translation
            .refuse(other, Diagnostic::new(message).note("a step computes in one type: switch one off"));
    }
    Some(first)
}

/// A scale of 0 is dynamic; DeepSpeed's defaults hold for keys that the file leaves out.
fn loss_scale(translation: &mut Translation) {
    let document = translation.document;
    let leaf = |path: &str| document.leaf(path);
    let Some(any) = [LOSS_SCALE, POWER, WINDOW, HYSTERESIS, LEAST, "fp16.enabled"].into_iter().find_map(leaf)
    else {
        return;
    };
    if let Some(leaf) = leaf(LOSS_SCALE).filter(|leaf| document.number(leaf.path) != Some(0.0)) {
        translation.set("loss-scale", leaf.digits().unwrap_or_default(), leaf);
        return;
    }
    let power = document.count(POWER).unwrap_or(16);
    // An f32 ends below 2^128.
    if let Some(leaf) = leaf(POWER).filter(|_| power > 127) {
        let message = format!("`{POWER}` {power}: a loss scale of 2^{power} is not finite");
        translation.refuse(leaf, Diagnostic::new(message).note("DeepSpeed's default is 16"));
        return;
    }
    let initial = 2f64.powi(i32::try_from(power).unwrap_or(i32::MAX));
    let window = document.count(WINDOW).unwrap_or(if document.is_patrickstar { 2000 } else { 1000 });
    let hysteresis = document.count(HYSTERESIS).unwrap_or(2);
    // PatrickStar reads the number as the factor of the scale, and shrinks it at the first overflow.
    let hysteresis = match (document.is_patrickstar, leaf(HYSTERESIS)) {
        (false, _) => hysteresis,
        (true, Some(leaf)) if hysteresis != 2 => {
            translation.drop_leaf(leaf, "the loss scale changes by the factor 2");
            1
        }
        (true, _) => 1,
    };
    let least = document.digits(LEAST).unwrap_or("1");
    let text = format!("dynamic:initial={initial},interval={window},hysteresis={hysteresis},min={least}");
    translation.set("loss-scale", &text, any);
}

/// The type in which gradients are summed, over microbatches and over devices: one for both.
fn gradients(translation: &mut Translation) {
    let document = translation.document;
    let [sums, sent] = ["data_types.grad_accum_dtype", "communication_data_type"].map(|path| {
        let leaf = document.leaf(path)?;
        let name = leaf.text()?;
        Some((
            leaf,
            TYPES.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, flag)| flag),
        ))
    });
    for (leaf, dtype) in [sums, sent].into_iter().flatten() {
        if dtype.is_none() {
            let message = format!("`{}`: there is no type `{}`", leaf.path, leaf.text().unwrap_or_default());
            translation.refuse(leaf, Diagnostic::new(message).note("there are fp32, fp16 and bf16"));
        }
    }
    if let Some((leaf, Some(dtype))) = sums.or(sent) {
        translation.set("grad-dtype", dtype, leaf);
    }
    if let (Some((_, sums)), Some((leaf, sent))) = (sums, sent)
        && sums != sent
    {
        translation.drop_leaf(leaf, "gradients are sent in the type of data_types.grad_accum_dtype");
    }
}
