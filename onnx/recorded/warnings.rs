//! Warnings about the parts of the author's module that a file does not hold, or holds under another name.

use crate::record::Record;
use crate::record::names::{is_folded_weight, is_generated};
use crate::{Graph, Node, Tensor, TensorSource};
use ir::Diagnostic;
use std::collections::BTreeMap;

impl Record {
    /// Warns of parameters that the file does not hold, of tensors that were merged although their elements differ, and of
    /// names that are guesses.
    pub(crate) fn warnings(&self, graph: &Graph, aliases: &BTreeMap<String, Vec<String>>) -> Vec<Diagnostic> {
        let merged = self.merged.iter().map(merged_warning);
        let separated = self.separated_warning().into_iter();
        merged
            .chain(separated)
            .chain(self.lost_warning(graph))
            .chain(self.renamed_warning(graph, aliases))
            .collect()
    }

    /// Warns of tensors that an optimiser merged, and that were separated again.
    fn separated_warning(&self) -> Option<Diagnostic> {
        if self.separated.is_empty() {
            return None;
        }
        let names = self.separated.iter().map(|(name, others)| format!("`{name}` for {}", shortened(others)));
        let names: Vec<String> = names.collect();
        let message = format!(
            "equal tensors of several modules were merged in the file, and are trained apart: {}",
            shortened_list(&names)
        );
        let note = "an optimiser of ONNX files does this to the ones and zeros of a fresh model; train the file that the exporter wrote \
             if the author's module shares these tensors";
        Some(Diagnostic::new(message).note(note))
    }

    /// Warns of parameters that are not separate tensors of the file.
    fn lost_warning(&self, graph: &Graph) -> Option<Diagnostic> {
        if self.lost.is_empty() {
            return None;
        }
        let is_known = |name: &String| {
            self.tensors.contains_key(name) || self.made.contains(name) || self.packed.contains(name)
        };
        let stored = graph.tensors.iter().filter(|tensor| !is_known(&tensor.name));
        let computed = stored.filter(|tensor| tensor.dtype.is_float() && may_be_folded(tensor));
        let computed: Vec<String> = computed.map(|tensor| tensor.name.clone()).collect();
        let has_folded_norms = || graph.nodes.iter().any(has_folded_norm);
        let into = match computed[..] {
            [] => has_folded_norms().then(|| "the weights of layers".to_owned()),
            _ => Some(format!("tensors with names of its own ({})", shortened(&computed))),
        };
        let (are, them) =
            if self.lost.len() == 1 { ("parameter is", "it") } else { ("parameters are", "them") };
        let message = format!("{} {are} not in the file: {}", self.lost.len(), shortened(&self.lost));
        let note = match into {
            Some(into) => format!(
                "the exporter folded {them} into {into}, or the model does not use {them}; export with optimize=False"
            ),
            None => format!(
                "the model does not use {them}, or uses {them} under another name, as for a tied parameter"
            ),
        };
        Some(Diagnostic::new(message).note(note))
    }

    /// Warns of initializers that the exporter computed from unknown parameters.
    fn renamed_warning(&self, graph: &Graph, aliases: &BTreeMap<String, Vec<String>>) -> Option<Diagnostic> {
        let is_renamed = |tensor: &&Tensor| {
            let is_number = tensor.dims.is_empty() && !is_folded_weight(&tensor.name);
            tensor.name.starts_with("onnx::") && tensor.dtype.is_float() && !is_number
        };
        let names = graph.tensors.iter().filter(is_renamed);
        let names = names.map(|tensor| match aliases.get(&tensor.name).and_then(|names| names.first()) {
            Some(guess) => format!("`{}` (perhaps {guess})", tensor.name),
            None => format!("`{}`", tensor.name),
        });
        let unknown = self.tensors.iter().filter(|(name, recorded)| {
            let is_held = graph.tensors.iter().any(|tensor| tensor.name == **name);
            recorded.view.is_none() && recorded.is_parameter && is_held
        });
        let unknown =
            unknown.map(|(name, recorded)| format!("`{name}` ({} in another layout)", recorded.name));
        let names: Vec<String> = names.chain(unknown).collect();
        let count = names.len();
        (count > 0).then(|| {
            let tensors = if count == 1 { "a tensor" } else { &format!("{count} tensors") };
            let message = format!("the exporter renamed {tensors}: {}", shortened_list(&names));
            let warning = Diagnostic::new(message);
            if self.is_listed {
                return warning.note("export with optimize=False to keep the names and layouts of the module");
            }
            warning
                .note("a tensor that the exporter computed from parameters, such as `1 - p`, is trained as a \
                     parameter of its own")
                .note("export with do_constant_folding=False to keep the names and the computations of the module")
        })
    }
}

/// Whether a convolution or a linear layer was merged with the batch norm after it. The dynamo exporter's optimizer records this;
/// the legacy exporter gives new names to the weight and the bias, which are no longer the module's.
pub(crate) fn has_folded_norm(node: &Node) -> bool {
    let fused = node.metadata.get("pkg.onnxscript.rewriter.rule_name");
    let renamed = |i: usize| node.input(i).is_some_and(|name| is_generated(name) && name.contains("::"));
    let is_convolution = node.op_type.starts_with("Conv");
    fused.is_some_and(|rules| rules.contains("FuseBatchNorm")) || is_convolution && renamed(1) && renamed(2)
}

fn merged_warning((tensor, with): (&String, &String)) -> Diagnostic {
    let message = format!("`{tensor}` and `{with}` have the same bytes: they are trained as one parameter");
    Diagnostic::new(message).note("--untied keeps the tensors apart")
}

/// Whether the exporter may have computed a tensor from parameters. False for single numbers and masks.
fn may_be_folded(tensor: &Tensor) -> bool {
    let is_number = tensor.element_count() == 1 && is_generated(&tensor.name);
    !is_number && tensor.source == TensorSource::Initializer && !tensor.name.contains("scalar")
}

/// Returns the first names of a list in quotes, and the number of the others.
pub(crate) fn shortened(names: &[String]) -> String {
    shortened_list(&names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>())
}

/// Returns the first items of a list, and the number of the others.
fn shortened_list(items: &[String]) -> String {
    const SHOWN: usize = 200;
    match items.len().saturating_sub(SHOWN) {
        0 => items.join(", "),
        more => format!("{} and {more} more", items[..SHOWN].join(", ")),
    }
}
