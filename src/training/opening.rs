//! Opens the data of a run. It decides which data feed each input, which labels are shifted, whether rows may be reordered, and which
//! indices are checked.

use crate::config::{Data, Settings};
use crate::failure::Failure;
use crate::{feed, sizes};
use anyhow::Context;
use data::{LabelsFrom, Loader, LoaderOptions};
use ir::{Diagnostic, Module};
use passes::bind::where_places_count;

/// Opens the data of a run. Labels in the data are shifted if they equal the input at the same place, and the program predicts the next
/// token. A resumed run keeps the convention of `of_run`. Errors: every fault of the data that would make a step fail.
pub fn open_data(
    module: &Module,
    settings: &Settings,
    microbatches: u64,
    of_run: Option<DataOfRun>,
) -> Result<Loader, Failure> {
    let asked = settings.data.labels_from;
    let kept = of_run.and_then(|run| run.labels_from);
    let mut loader = open_with(module, settings, microbatches, asked.or(kept), of_run)?;
    if asked.is_some() {
        return Ok(loader);
    }
    let Some(input) = loader.repeated_input().map(str::to_owned) else { return Ok(loader) };
    let same = format!("all labels that count equal `{input}` at the same place");
    match (feed::predicts_next(module, &input), of_run) {
        (true, None) => {
            loader = open_with(module, settings, microbatches, Some(LabelsFrom::Shift), of_run)?;
            loader.note(format!(
                "{same}, so the loader shifts them: each output is trained to predict the next token; to train on \
                 the labels as they are: --labels-from given"
            ));
        }
        (true, Some(_)) => loader.note(format!(
            "{same}, and this run began to train on them as they are; to train on the next token, begin a new run"
        )),
        (false, _) if feed::has_own_loss(module) => {}
        (false, _) => loader.note(format!(
            "{same}, and the loader does not shift them, since the outputs depend on later positions; if each output \
             should predict the next token: --labels-from shift"
        )),
    }
    Ok(loader)
}

/// The facts about its data that a run keeps when it continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOfRun {
    /// The convention of the labels; `None` if the checkpoint does not name it.
    pub labels_from: Option<LabelsFrom>,
    /// Training samples.
    pub samples: u64,
}

fn open_with(
    module: &Module,
    settings: &Settings,
    microbatches: u64,
    labels_from: Option<LabelsFrom>,
    of_run: Option<DataOfRun>,
) -> Result<Loader, Failure> {
    let Data { train, eval, tokenizer, input, .. } = &settings.data;
    let train = train.as_ref().context("the data is opened only to train")?;
    let place = where_places_count(module).map(|node| module.node(node));
    let options = LoaderOptions {
        seed: settings.compile.seed.seed,
        microbatches,
        eval: eval.clone(),
        tokenizer: tokenizer.clone(),
        labels_from,
        samples: of_run.map(|run| run.samples),
        inputs: input.iter().map(|input| (input.name.clone(), input.source.clone())).collect(),
        shuffle: place.is_none(),
        ..LoaderOptions::default()
    };
    let mut spec = feed::model_spec(module)?;
    if let Some(label) = &spec.label {
        spec.unfillable = feed::unfillable(module, &label.name)?;
    }
    let loader = Loader::new(&spec, train, &options);
    let mut loader = loader.map_err(|error| Diagnostic::new(data::one_line(&error)))?;
    if let Some(node) = place {
        keep_company(&mut loader, module, node)?;
    }
    loader.check_indices_of(module);
    Ok(loader)
}

/// Checks that the rows of the data fill whole batches, and notes for the user that they keep their order. Error: rows that do not fill
/// their last batch, so that other rows would take the empty places.
fn keep_company(loader: &mut Loader, module: &Module, node: &ir::Node) -> Result<(), Diagnostic> {
    let batch = sizes::batch(module).unwrap_or(1);
    let rows = loader.samples();
    let reason = format!("`{}` ({}) reads rows of the batch by their places", node.origin, node.op.name());
    if !rows.is_multiple_of(batch) {
        let error = Diagnostic::new(format!(
            "{reason}, and the {rows} rows of the data are no multiple of the batch of {batch}"
        ));
        return Err(error.note("give as many rows as the model was exported with, or a multiple of them"));
    }
    loader.note(format!("{reason}, so the rows keep their order and are not shuffled"));
    Ok(())
}
