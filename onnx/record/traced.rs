//! Traced calls: the PyTorch call from which a node was made, which the dynamo exporter writes into the node's metadata.
//!
//! `%linear : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = (%x, %p_w, %p_b), kwargs = {})`

/// The key of a node's metadata with its traced call.
pub(crate) const KEY: &str = "pkg.torch.onnx.fx_node";

/// The deepest nesting of arguments.
const DEPTH_LIMIT: usize = 16;

/// A call of the traced program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TracedCall<'t> {
    /// The value that the call defines, without the `%`.
    pub(crate) result: &'t str,
    /// The operator without namespace and overload: `layer_norm`.
    pub(crate) operator: &'t str,
    /// The positional arguments, then the named arguments.
    pub(crate) arguments: Vec<Argument<'t>>,
}

/// An argument of a traced call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Argument<'t> {
    /// A value, without the `%`.
    Value(&'t str),
    /// A list or a tuple.
    List(Vec<Argument<'t>>),
    /// A number, a word or a string, as it is written.
    Word(&'t str),
}

impl<'t> TracedCall<'t> {
    /// Parses a call; `None` if the text is not a call.
    pub(crate) fn parse(text: &'t str) -> Option<Self> {
        let (result, rest) = text.trim_start().strip_prefix('%')?.split_once(" : ")?;
        let (_, rest) = rest.split_once("call_function[target=")?;
        let (target, rest) = rest.split_once("](args = (")?;
        let operator = target.trim_start_matches("torch.ops.").split('.').nth(1)?;
        let mut reader = Reader { text: rest };
        let mut arguments = reader.list(')', DEPTH_LIMIT)?;
        if let Some(rest) = reader.text.strip_prefix(", kwargs = {") {
            reader.text = rest;
            arguments.extend(reader.list('}', DEPTH_LIMIT)?);
        }
        Some(Self { result, operator, arguments })
    }

    /// Returns the values among the arguments, including those in lists, in order.
    pub(crate) fn values(&self) -> Vec<&'t str> {
        fn collect<'t>(arguments: &[Argument<'t>], values: &mut Vec<&'t str>) {
            for argument in arguments {
                match argument {
                    Argument::Value(name) => values.push(name),
                    Argument::List(inner) => collect(inner, values),
                    Argument::Word(_) => {}
                }
            }
        }
        let mut values = Vec::new();
        collect(&self.arguments, &mut values);
        values
    }

    /// Returns the weights of a call such as `gru(input, initial, weights, …)`, in order. The result is meaningless for other
    /// calls.
    pub(crate) fn weights(&self) -> Vec<&'t str> {
        let Some(Argument::List(weights)) = self.arguments.get(2) else { return vec![] };
        let values = weights.iter().filter_map(|weight| match weight {
            Argument::Value(name) => Some(*name),
            Argument::List(_) | Argument::Word(_) => None,
        });
        values.collect()
    }

    /// Returns an argument that is an integer.
    pub(crate) fn integer(&self, i: usize) -> Option<i64> {
        self.word(i)?.parse().ok()
    }

    /// Returns an argument that is a number or a word.
    pub(crate) fn word(&self, i: usize) -> Option<&'t str> {
        match self.arguments.get(i)? {
            Argument::Word(word) => Some(word),
            Argument::Value(_) | Argument::List(_) => None,
        }
    }
}

/// Reads arguments from the front of a text.
struct Reader<'t> {
    text: &'t str,
}

impl<'t> Reader<'t> {
    /// Reads arguments up to and including the closing sign. The name of a named argument is dropped.
    fn list(&mut self, close: char, depth: usize) -> Option<Vec<Argument<'t>>> {
        let mut arguments = Vec::new();
        loop {
            self.text = self.text.trim_start_matches([' ', ',']);
            if let Some(rest) = self.text.strip_prefix(close) {
                self.text = rest;
                return Some(arguments);
            }
            if self.text.is_empty() {
                return None;
            }
            arguments.push(self.argument(depth)?);
        }
    }

    fn argument(&mut self, depth: usize) -> Option<Argument<'t>> {
        for (open, close) in [('[', ']'), ('(', ')'), ('{', '}')] {
            if let Some(rest) = self.text.strip_prefix(open) {
                self.text = rest;
                return Some(Argument::List(self.list(close, depth.checked_sub(1)?)?));
            }
        }
        let end = self.text.find([',', ')', ']', '}', '[', '(', '{']).unwrap_or(self.text.len());
        let (word, rest) = self.text.split_at(end);
        if word.is_empty() {
            return None;
        }
        self.text = rest;
        let word = word.trim();
        let value = word.split_once(": ").map_or(word, |(_, value)| value);
        Some(value.strip_prefix('%').map_or(Argument::Word(value), Argument::Value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_gives_its_operator_and_its_arguments() {
        let text = "%lstm : [num_users=1] = call_function[target=torch.ops.aten.lstm.input](args = (%x, \
                    [%zeros, %zeros_1], [%p_w, %p_b], True, 1, 0.0), kwargs = {out: %y, dtype: torch.float32})";
        let call = TracedCall::parse(text).expect("it is a call");
        assert_eq!((call.result, call.operator), ("lstm", "lstm"));
        assert_eq!(call.values(), ["x", "zeros", "zeros_1", "p_w", "p_b", "y"]);
        assert_eq!((call.word(3), call.integer(4), call.integer(1)), (Some("True"), Some(1), None));
        assert_eq!(call.arguments.len(), 8);
    }

    #[test]
    fn a_broken_call_is_none() {
        for text in [
            "",
            "%x",
            "%x : y",
            "%x : [num_users=1] = call_function[target=torch.ops.aten.mul.Tensor](args = (%a, ",
            "%x : [num_users=1] = call_function[target=](args = (%a))",
            &format!("%x : call_function[target=torch.ops.aten.a.b](args = ({}", "[".repeat(1000)),
        ] {
            assert_eq!(TracedCall::parse(text), None, "{text}");
        }
    }
}
