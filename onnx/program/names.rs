//! The names of a graph, each of which is used only once.

use std::collections::BTreeSet;

/// The names given so far.
#[derive(Default)]
pub(super) struct Names(BTreeSet<String>);

impl Names {
    /// Returns the name if it is free, otherwise the name followed by the smallest number that makes it free.
    pub(super) fn free(&mut self, wanted: &str) -> String {
        if self.0.insert(wanted.to_owned()) {
            return wanted.to_owned();
        }
        let mut number = 2u64;
        loop {
            let name = format!("{wanted}.{number}");
            if self.0.insert(name.clone()) {
                return name;
            }
            number += 1;
        }
    }
}

/// Returns the name in an origin `node "NAME" (OP, opset N)`, or any other origin unchanged.
pub(super) fn of_origin(origin: &str) -> &str {
    let quoted = origin.strip_prefix("node \"").and_then(|rest| rest.split_once("\" ("));
    quoted.map_or(origin, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_given_once() {
        let mut names = Names::default();
        assert_eq!(["x", "x", "x.2", "x"].map(|name| names.free(name)), ["x", "x.2", "x.2.2", "x.3"]);
    }

    #[test]
    fn an_origin_has_the_name_of_its_node() {
        assert_eq!(of_origin("node \"/h/Gemm\" (Gemm, opset 20)"), "/h/Gemm");
        assert_eq!(of_origin("optimizer"), "optimizer");
    }
}
