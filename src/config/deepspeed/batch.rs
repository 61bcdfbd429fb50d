//! The batch: `train_batch_size` = `train_micro_batch_size_per_gpu` · `gradient_accumulation_steps` · data ranks. Two of the three
//! numbers give the third, as in DeepSpeed's `_set_batch_related_parameters`.

use ir::Diagnostic;

use super::Translation;

const TOTAL: &str = "train_batch_size";
const MICROBATCH: &str = "train_micro_batch_size_per_gpu";
const ACCUMULATION: &str = "gradient_accumulation_steps";

/// `--microbatch` and `--global-batch`. A number on the command line replaces the file's, and the accumulation follows from it.
pub(super) fn translate(translation: &mut Translation, data_ranks: u64) {
    let (document, line) = (translation.document, translation.line);
    let [total_leaf, micro_leaf, steps_leaf] =
        [TOTAL, MICROBATCH, ACCUMULATION].map(|path| document.leaf(path));
    let given: [Option<u64>; 2] = ["global-batch", "microbatch"].map(|flag| line.value(flag));
    let total = given[0].or(document.count(TOTAL));
    let micro = given[1].or(document.count(MICROBATCH));
    let steps = document.count(ACCUMULATION);
    let file_decides = given.iter().all(Option::is_none);

    for (flag, leaf) in [("global-batch", total_leaf), ("microbatch", micro_leaf)] {
        if let Some((leaf, size)) = leaf.and_then(|leaf| Some((leaf, leaf.count()?))) {
            translation.set(flag, &size.to_string(), leaf);
        }
    }
    // Products of three numbers of 53 bits.
    let wide = |number: Option<u64>| number.map(u128::from);
    let ranks = u128::from(data_ranks);
    match (wide(total), wide(micro), wide(steps)) {
        (Some(total), Some(micro), steps) if file_decides => {
            let each = micro.saturating_mul(steps.unwrap_or(1));
            let product = each.saturating_mul(ranks);
            let agrees = if steps.is_some() { total == product } else { total.is_multiple_of(product) };
            if let (false, Some(leaf)) = (agrees, total_leaf) {
                translation.refuse(leaf, contradiction(total, micro, steps, ranks));
            }
        }
        (Some(total), None, steps) => {
            let Some(leaf) = total_leaf.or(steps_leaf) else { return };
            let parts = steps.unwrap_or(1).saturating_mul(ranks);
            if total.is_multiple_of(parts) {
                translation.set("microbatch", &(total / parts).to_string(), leaf)
            } else {
                let name = if given[0].is_some() { "--global-batch".into() } else { format!("`{TOTAL}`") };
                translation.refuse(leaf, no_share(&name, total, steps, ranks));
            }
        }
        (None, Some(micro), Some(steps)) => {
            if let Some(leaf) = steps_leaf {
                let total = micro.saturating_mul(steps).saturating_mul(ranks);
                translation.set("global-batch", &total.to_string(), leaf);
            }
        }
        (None, None, Some(_)) => {
            if let Some(leaf) = steps_leaf {
                translation
                    .drop_leaf(leaf, "it needs train_micro_batch_size_per_gpu or --microbatch beside it");
            }
        }
        _ => {}
    }
}

/// `1 data rank`, `4 data ranks`.
fn data_ranks(ranks: u128) -> String {
    if ranks == 1 { "1 data rank".to_owned() } else { format!("{ranks} data ranks") }
}

/// The error for a batch that is not the product of its factors, or not a multiple of it.
fn contradiction(total: u128, micro: u128, steps: Option<u128>, ranks: u128) -> Diagnostic {
    let factors = match steps {
        Some(steps) => format!("`{MICROBATCH}` {micro} x `{ACCUMULATION}` {steps}"),
        None => format!("`{MICROBATCH}` {micro}"),
    };
    let each = micro.saturating_mul(steps.unwrap_or(1));
    let product = each.saturating_mul(ranks);
    let is = if steps.is_some() { "is not" } else { "is not a multiple of" };
    let message = format!("`{TOTAL}` {total} {is} {factors} x {} = {product}", data_ranks(ranks));
    let error = Diagnostic::new(message);
    let error = if total.is_multiple_of(each) {
        error.note(format!("{} would fit: --mesh dp={}", data_ranks(total / each), total / each))
    } else {
        error
    };
    error.note(format!("or leave out one of the keys, or give `{TOTAL}` {product}"))
}

/// The error for a batch that the ranks and the accumulation cannot share.
fn no_share(name: &str, total: u128, steps: Option<u128>, ranks: u128) -> Diagnostic {
    let steps = steps.map(|steps| format!("`{ACCUMULATION}` {steps} x ")).unwrap_or_default();
    Diagnostic::new(format!("{name} {total} is not a multiple of {steps}{}", data_ranks(ranks)))
        .note(format!("each data rank takes the same number of samples; change {name}, or --mesh"))
}
