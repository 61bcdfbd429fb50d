//! The update rule. DeepSpeed's choice by name stands in `_configure_basic_optimizer` of `deepspeed/runtime/engine.py`.

use ir::Diagnostic;
use passes::optimizer::Algorithm;

use super::Translation;
use super::document::{Document, Leaf};
use super::schedule::Rate;

const TYPE: &str = "optimizer.type";
const MOMENTUM: &str = "optimizer.params.momentum";
const NESTEROV: &str = "optimizer.params.nesterov";
const BETAS: &str = "optimizer.params.betas";
const EPSILON: &str = "optimizer.params.eps";
const DECAY: &str = "optimizer.params.weight_decay";

/// An update rule of DeepSpeed that Trainyard has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Adam: with decoupled decay, unless the file says otherwise.
    Adam,
    /// AdamW.
    AdamW,
    /// An Adam whose communication DeepSpeed compresses.
    Compressed,
    Sgd,
    Adagrad,
    Lion,
}

/// DeepSpeed's names, whose case does not matter.
const RULES: [(&str, Rule); 7] = [
    ("Adam", Rule::Adam),
    ("AdamW", Rule::AdamW),
    ("OneBitAdam", Rule::Compressed),
    ("ZeroOneAdam", Rule::Compressed),
    ("SGD", Rule::Sgd),
    ("Adagrad", Rule::Adagrad),
    ("Lion", Rule::Lion),
];

/// The rule that the file names, if it exists here.
fn rule(document: &Document) -> Option<(Rule, &Leaf)> {
    let leaf = document.leaf(TYPE)?;
    let name = leaf.text()?;
    let (_, rule) = RULES.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
    Some((rule, leaf))
}

/// The rate of an optimizer for which the file gives none, if it is not the default of `--lr`.
pub(super) fn default_rate(document: &Document) -> Option<(String, &Leaf)> {
    let (rule, leaf) = rule(document).filter(|_| !document.is_automatic("optimizer.params.lr"))?;
    let rate = if document.is_patrickstar || rule == Rule::Adagrad { "0.01" } else { return None };
    Some((rate.to_owned(), leaf))
}

/// `--optimizer`, `--lr` and `--weight-decay`. A rule that does not exist here is an error, unless the command line gives one.
pub(super) fn translate(translation: &mut Translation, rate: &Rate) {
    let document = translation.document;
    if let Some((digits, leaf)) = &rate.of_file {
        translation.set("lr", digits, leaf);
    }
    if let (Some(own), Some((digits, leaf))) = (document.leaf("optimizer.params.lr"), &rate.of_file)
        && leaf.path != own.path
        && digits.parse::<f64>().ok() != document.number(own.path)
    {
        translation.drop_leaf(own, format!("the schedule's rate is {digits}"));
    }
    if let Some(leaf) = document.leaf(DECAY) {
        translation.set("weight-decay", leaf.digits().unwrap_or_default(), leaf);
    }
    match (rule(document), document.leaf(TYPE)) {
        (Some((rule, leaf)), _) => translate_rule(translation, rule, leaf),
        (None, Some(leaf)) if !translation.line.gives("optimizer") => {
            translation.refuse(leaf, unknown(leaf.text().unwrap_or_default()));
        }
        _ => {}
    }
}

fn translate_rule(translation: &mut Translation, rule: Rule, leaf: &Leaf) {
    let document = translation.document;
    let coupled = if document.is_patrickstar {
        rule == Rule::Adam
    } else {
        rule == Rule::Adam && document.is_off("optimizer.params.adam_w_mode")
    };
    let is_adam = matches!(rule, Rule::Adam | Rule::AdamW | Rule::Compressed);
    let (name, numbers) = match rule {
        Rule::Adam if coupled => ("adam", betas(translation)),
        Rule::Adam | Rule::AdamW | Rule::Compressed => ("adamw", betas(translation)),
        Rule::Adagrad => ("adagrad", vec![]),
        // DeepSpeed's Lion forgets its momentum more slowly than the paper's.
        Rule::Lion if document.leaf(BETAS).is_none() && !document.is_automatic(BETAS) => {
            ("lion", vec!["beta2=0.999".to_owned()])
        }
        Rule::Lion => ("lion", betas(translation)),
        Rule::Sgd => match document.digits(MOMENTUM) {
            Some(momentum) if document.number(MOMENTUM) != Some(0.0) => {
                let name = if document.is_on(NESTEROV) { "nesterov" } else { "momentum" };
                (name, vec![format!("momentum={momentum}")])
            }
            _ => ("sgd", vec![]),
        },
    };
    let epsilon = document
        .digits(EPSILON)
        .filter(|_| !matches!(rule, Rule::Sgd | Rule::Lion))
        .map(|eps| format!("eps={eps}"));
    let numbers: Vec<String> = numbers.into_iter().chain(epsilon).collect();
    let text = if numbers.is_empty() { name.to_owned() } else { format!("{name}:{}", numbers.join(",")) };
    translation.set("optimizer", &text, leaf);
    if document.leaf(DECAY).is_none() && !document.is_automatic(DECAY) {
        // DeepSpeed's own optimizers do not decay by default; PyTorch's AdamW does.
        let decays = document.leaf("optimizer.params.torch_adam").is_some() && !coupled;
        translation.set("weight-decay", if decays { "0.01" } else { "0" }, leaf);
    }
    if rule == Rule::Compressed {
        let name = leaf.text().unwrap_or_default();
        let reason = "the rule is that of AdamW, and gradients are sent without compression";
        translation.notes.drop_key(format!("{TYPE} {name:?}"), reason);
    }
    let others: &[&str] = match rule {
        _ if is_adam => &[MOMENTUM, NESTEROV],
        Rule::Sgd => &[BETAS, EPSILON],
        Rule::Lion => &[MOMENTUM, NESTEROV, EPSILON],
        _ => &[MOMENTUM, NESTEROV, BETAS],
    };
    for leaf in others.iter().filter_map(|path| document.leaf(path)) {
        if !document.is_off(leaf.path) {
            translation.drop_leaf(leaf, format!("{name} does not have it"));
        }
    }
}

/// The decays of Adam's moments.
fn betas(translation: &mut Translation) -> Vec<String> {
    let Some(leaf) = translation.document.leaf(BETAS) else { return vec![] };
    let numbers = leaf.numbers();
    let [first, second] = numbers else {
        let message = format!("`{BETAS}` wants two numbers, not {}", numbers.len());
        translation.refuse(leaf, Diagnostic::new(message).note("the usual ones: \"betas\": [0.9, 0.999]"));
        return vec![];
    };
    vec![format!("beta1={first}"), format!("beta2={second}")]
}

/// The error for a rule that does not exist.
fn unknown(name: &str) -> Diagnostic {
    let own = Algorithm::ALL.map(|(_, name)| name).join(", ");
    Diagnostic::new(format!("`{TYPE}`: there is no optimizer `{name}`"))
        .note(format!("of DeepSpeed's there are {}", RULES.map(|(name, _)| name).join(", ")))
        .note(format!("or give one on the command line, which wins: --optimizer {own}"))
}
