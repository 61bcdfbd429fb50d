//! The element types, and the scale of the loss in fp16.

use ir::{DType, Diagnostic};

use super::Translation;
use super::document::Leaf;

const LOSS_SCALE: &str = "fp16.loss_scale";
const POWER: &str = "fp16.initial_scale_power";
const WINDOW: &str = "fp16.loss_scale_window";
const HYSTERESIS: &str = "fp16.hysteresis";
const LEAST: &str = "fp16.min_loss_scale";
const AUTOCAST: &str = "torch_autocast.dtype";

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
        (true, _) => Some(DType::BF16),
        (_, true) => Some(DType::F16),
        _ => line.value("precision"),
    };
    let computes_in_fp16 = match given {
        Some(choice) => choice == DType::F16,
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
    let autocast = on("torch_autocast.enabled").and_then(|leaf| autocast(translation, leaf));
    let found = [
        on("fp16.enabled").map(|leaf| ("fp16", leaf)),
        on("bf16.enabled").or(on("bfloat16.enabled")).map(|leaf| ("bf16", leaf)),
        autocast,
    ];
    let mut found = found.into_iter().flatten();
    let first = found.next()?;
    let is_given = translation.line.decides("precision");
    if let Some((_, other)) = found.find(|(flag, _)| *flag != first.0 && !is_given) {
        let message = format!("`{}` and `{}` exclude each other", first.1.path, other.path);
        translation
            .refuse(other, Diagnostic::new(message).note("a step computes in one type: switch one off"));
    }
    Some(first)
}

/// The flag of the type that PyTorch's autocast computes in: bf16, unless the file names one. None for f32.
fn autocast<'a>(translation: &mut Translation<'a>, switch: &'a Leaf) -> Option<(&'static str, &'a Leaf)> {
    let Some(leaf) = translation.document.leaf(AUTOCAST) else { return Some(("bf16", switch)) };
    match dtype(leaf.text().unwrap_or_default()) {
        Some("f16") => Some(("fp16", switch)),
        Some("bf16") => Some(("bf16", switch)),
        Some(_) => None,
        None => {
            translation.refuse(leaf, no_type(leaf));
            None
        }
    }
}

/// The name for `--grad-dtype` of a type of a file.
fn dtype(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix("torch.").unwrap_or(name);
    TYPES.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, flag)| flag)
}

/// The error for a type that does not exist.
fn no_type(leaf: &Leaf) -> Diagnostic {
    let message = format!("`{}`: there is no type `{}`", leaf.path, leaf.text().unwrap_or_default());
    Diagnostic::new(message).note("there are fp32, fp16 and bf16")
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
        Some((leaf, dtype(leaf.text()?)))
    });
    for (leaf, dtype) in [sums, sent].into_iter().flatten() {
        if dtype.is_none() {
            translation.refuse(leaf, no_type(leaf));
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
