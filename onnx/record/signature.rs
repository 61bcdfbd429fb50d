//! The exporter's list of parameters and buffers: `pkg.torch.export.ExportedProgram.graph_signature`.

use std::collections::BTreeMap;

/// The key of the graph's metadata with the list.
pub(super) const KEY: &str = "pkg.torch.export.ExportedProgram.graph_signature";

/// The kind of a listed tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A parameter of the module.
    Parameter,
    /// A buffer of the module, or a constant of its code.
    Buffer,
}

/// A tensor of the author's module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed<'t> {
    /// The kind of the tensor.
    pub(super) kind: Kind,
    /// The name in the module: `layers.0.weight`.
    pub(super) name: &'t str,
}

/// The listed tensors by their symbols in traced calls (`p_layers_0_weight`), and their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Signature<'t> {
    by_symbol: BTreeMap<&'t str, Listed<'t>>,
    /// The names in the order of the list.
    pub(super) names: Vec<&'t str>,
    /// The names that are keys of `state_dict`: those of parameters and persistent buffers.
    pub(super) keys: Vec<&'t str>,
}

impl<'t> Signature<'t> {
    /// Parses the list. Lines in another form are ignored.
    pub(super) fn parse(text: &'t str) -> Self {
        let mut signature = Self::default();
        for line in text.lines() {
            let Some((symbol, rest)) = line.trim().split_once(": ") else { continue };
            let Some((kind, rest)) = rest.split_once(" target='") else { continue };
            let Some((name, rest)) = rest.split_once('\'') else { continue };
            let is_key = kind == "PARAMETER" || kind == "BUFFER" && rest.contains("persistent=True");
            let kind = match kind {
                "PARAMETER" => Kind::Parameter,
                "BUFFER" | "CONSTANT_TENSOR" => Kind::Buffer,
                _ => continue,
            };
            if signature.by_symbol.insert(symbol, Listed { kind, name }).is_none() {
                signature.names.push(name);
                signature.keys.extend(is_key.then_some(name));
            }
        }
        signature
    }

    /// Returns the tensor of a symbol in a traced call.
    pub(super) fn find(&self, symbol: &str) -> Option<&Listed<'t>> {
        self.by_symbol.get(symbol)
    }

    /// Returns every symbol with the name of its tensor.
    pub(super) fn symbols(&self) -> impl Iterator<Item = (&'t str, &'t str)> {
        self.by_symbol.iter().map(|(symbol, listed)| (*symbol, listed.name))
    }

    /// Returns every tensor of the list.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Listed<'t>> {
        self.by_symbol.values()
    }

    /// Whether the list is empty or missing.
    pub(super) fn is_empty(&self) -> bool {
        self.by_symbol.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_are_tensors_of_the_module_are_read() {
        let text = "\n# inputs\np_l_weight: PARAMETER target='l.weight'\nb_s: BUFFER target='s' persistent=True\n\
                    b_t: BUFFER target='t' persistent=False\nx: USER_INPUT\n\n# outputs\ngetitem_3: BUFFER_MUTATION target='s'\n";
        let signature = Signature::parse(text);
        assert_eq!(signature.names, ["l.weight", "s", "t"]);
        assert_eq!(signature.keys, ["l.weight", "s"]);
        assert_eq!(signature.find("p_l_weight"), Some(&Listed { kind: Kind::Parameter, name: "l.weight" }));
        assert_eq!(signature.find("b_s").map(|listed| listed.kind), Some(Kind::Buffer));
        assert!(signature.find("x").is_none() && signature.find("getitem_3").is_none());
    }
}
