//! Einsum: a chain of contractions of two operands, from first to last.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use ir::ops::Labels;
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Compare, Select};
use ir::{DType, Dim, ValueId, ensure};

/// A tensor with a different label for each dim.
struct Labelled {
    value: ValueId,
    labels: Vec<u8>,
}

/// Einsum, with ellipses, diagonals, and a default output (the labels that occur once, sorted).
pub(super) fn einsum(cx: &mut Context, call: &Call) -> Outputs {
    let equation: String = call.string("equation").unwrap_or_default().split_whitespace().collect();
    let values = (0..call.input_count()).map(|i| cx.value(call, i)).collect::<Result<Vec<_>, _>>()?;
    let wrong = |why: &str| Problem::new(format!("the equation `{equation}` is not valid: {why}"));
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (&equation[..], None),
    };
    let words: Vec<&str> = inputs.split(',').collect();
    if words.len() != values.len() {
        return Err(wrong(&format!(
            "it has {} terms, and the node has {} inputs",
            words.len(),
            values.len()
        )));
    }
    let ndims: Vec<usize> = values.iter().map(|&value| cx.ty(value).ndim()).collect();
    let Parsed { terms, out } = parse(&words, output, &ndims).map_err(|why| wrong(&why))?;
    let mut operands = Vec::new();
    for (value, labels) in values.into_iter().zip(terms) {
        operands.push(diagonal(cx, Labelled { value, labels })?);
    }
    squeeze(cx, &mut operands)?;
    let mut rest = operands.into_iter();
    let mut sum = rest.next().ok_or_else(|| wrong("it has no operands"))?;
    let mut rest: Vec<Labelled> = rest.collect();
    while !rest.is_empty() {
        let next = rest.remove(0);
        let needed =
            |label: &u8| out.contains(label) || rest.iter().any(|later| later.labels.contains(label));
        sum = contract(cx, sum, next, needed, if rest.is_empty() { Some(&out) } else { None })?;
    }
    one(arranged(cx, sum, &out)?)
}

/// The labels of all terms, with ellipses replaced by labels.
struct Parsed {
    terms: Vec<Vec<u8>>,
    out: Vec<u8>,
}

fn parse(words: &[&str], output: Option<&str>, ndims: &[usize]) -> Result<Parsed, String> {
    if let Some(word) = words.iter().chain(&output).find(|word| word.matches("...").count() > 1) {
        return Err(format!("the term `{word}` has two ellipses"));
    }
    let named = |word: &str| word.replace("...", "");
    let letters: Vec<u8> = words.iter().chain(&output).flat_map(|word| named(word).into_bytes()).collect();
    if let Some(&other) = letters.iter().find(|label| !label.is_ascii_alphabetic()) {
        return Err(format!("`{}` is not a label", other as char));
    }
    let mut widest = 0;
    for (word, &ndim) in words.iter().zip(ndims) {
        let count = named(word).len();
        let dots = if word.contains("...") { ndim.checked_sub(count) } else { (ndim == count).then_some(0) };
        widest = widest.max(dots.ok_or_else(|| format!("`{word}` does not fit an operand of {ndim} dims"))?);
    }
    // The dims of an ellipsis are aligned at the last one. Their labels are letters that the equation does not use.
    let free = (b'a'..=b'z').chain(b'A'..=b'Z').filter(|label| !letters.contains(label));
    let dots: Vec<u8> = free.take(widest).collect();
    if dots.len() < widest {
        return Err("it has more dims than there are letters".into());
    }
    let written_out = |word: &str, count: usize| match word.split_once("...") {
        Some((before, after)) => [before.as_bytes(), &dots[widest - count..], after.as_bytes()].concat(),
        None => word.as_bytes().to_vec(),
    };
    let terms: Vec<Vec<u8>> = words
        .iter()
        .zip(ndims)
        .map(|(word, &ndim)| written_out(word, ndim.saturating_sub(named(word).len())))
        .collect();
    let out = match output {
        Some(output) => written_out(output, widest),
        None => {
            let mut once: Vec<u8> =
                letters.iter().copied().filter(|l| letters.iter().filter(|m| *m == l).count() == 1).collect();
            once.sort_unstable();
            [&dots[..], &once].concat()
        }
    };
    for (i, label) in out.iter().enumerate() {
        if out[..i].contains(label) || !terms.iter().any(|term| term.contains(label)) {
            return Err(format!(
                "label `{}` of the result must stand there once, and it must stand in a term",
                *label as char
            ));
        }
    }
    Ok(Parsed { terms, out })
}

/// If a label occurs twice in a term, takes the elements with equal indices.
fn diagonal(cx: &mut Context, mut operand: Labelled) -> Result<Labelled, Problem> {
    let twice = |labels: &[u8]| {
        (0..labels.len()).find_map(|j| Some((labels[..j].iter().position(|label| *label == labels[j])?, j)))
    };
    while let Some((i, j)) = twice(&operand.labels) {
        let ty = cx.ty(operand.value).clone();
        ensure!(
            ty.dims[i] == ty.dims[j],
            "the diagonal of dims {i} and {j} of {ty} needs two dims of equal size"
        );
        let row = cx.counted(DType::I64, ty.ndim(), i as u32, ty.dims[i].clone())?;
        let column = cx.counted(DType::I64, ty.ndim(), j as u32, ty.dims[j].clone())?;
        let kept = cx.build(Select.of(Compare::Equal.of(row, column), operand.value, 0.0))?;
        operand.value = cx.b.sum(kept, &[j as u32])?;
        operand.labels.remove(j);
    }
    Ok(operand)
}

/// Removes dims of size one whose label has a larger dim in another operand; they broadcast.
fn squeeze(cx: &mut Context, operands: &mut [Labelled]) -> Result<(), Problem> {
    let mut large: Vec<u8> = Vec::new();
    for operand in operands.iter() {
        let dims = &cx.ty(operand.value).dims;
        large.extend(
            operand.labels.iter().zip(dims).filter(|(_, dim)| !dim.is_one()).map(|(label, _)| *label),
        );
    }
    for operand in operands {
        let dims = cx.ty(operand.value).dims.clone();
        let stays = |i: usize| !dims[i].is_one() || !large.contains(&operand.labels[i]);
        let kept: Vec<usize> = (0..dims.len()).filter(|&i| stays(i)).collect();
        operand.value =
            cx.b.reshape(operand.value, kept.iter().map(|&i| dims[i].clone()).collect::<Vec<Dim>>())?;
        operand.labels = kept.iter().map(|&i| operand.labels[i]).collect();
    }
    Ok(())
}

/// Contracts two operands, and sums over the labels that are not needed any more.
fn contract(
    cx: &mut Context,
    x: Labelled,
    y: Labelled,
    needed: impl Fn(&u8) -> bool,
    order: Option<&[u8]>,
) -> Result<Labelled, Problem> {
    let x = summed(cx, x, |label| needed(label) || y.labels.contains(label))?;
    let y = summed(cx, y, |label| needed(label) || x.labels.contains(label))?;
    let both = x.labels.iter().chain(y.labels.iter().filter(|label| !x.labels.contains(label)));
    let mut labels: Vec<u8> = both.copied().filter(|label| needed(label)).collect();
    if let Some(order) = order {
        labels.sort_by_key(|label| order.iter().position(|other| other == label));
    }
    let [lhs, rhs, out] =
        [&x.labels, &y.labels, &labels].map(|labels| Labels(labels.iter().copied().collect()));
    let value = cx.b.one(Contract { lhs, rhs, out }, &[x.value, y.value])?;
    Ok(Labelled { value, labels })
}

/// Sums an operand over the labels that are not kept.
fn summed(cx: &mut Context, x: Labelled, kept: impl Fn(&u8) -> bool) -> Result<Labelled, Problem> {
    let gone: Vec<u32> = (0..x.labels.len() as u32).filter(|&i| !kept(&x.labels[i as usize])).collect();
    let value = cx.b.sum(x.value, &gone)?;
    let labels = x.labels.into_iter().filter(|label| kept(label)).collect();
    Ok(Labelled { value, labels })
}

/// Sums and transposes an operand so that it has these labels.
fn arranged(cx: &mut Context, x: Labelled, out: &[u8]) -> Built {
    let x = summed(cx, x, |label| out.contains(label))?;
    let places: Option<Vec<u32>> =
        out.iter().map(|label| x.labels.iter().position(|other| other == label).map(|i| i as u32)).collect();
    let places = places.ok_or_else(|| Problem::new("a label of the result stands in no operand"))?;
    Ok(cx.b.transpose(x.value, &places)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(words: &[&str], output: Option<&str>, ndims: &[usize]) -> Result<String, String> {
        let Parsed { terms, out } = parse(words, output, ndims)?;
        let word = |labels: &[u8]| labels.iter().map(|&label| label as char).collect::<String>();
        let terms: Vec<String> = terms.iter().map(|term| word(term)).collect();
        Ok(format!("{}->{}", terms.join(","), word(&out)))
    }

    #[test]
    fn an_ellipsis_gets_letters_of_its_own_and_aligns_at_the_last() {
        assert_eq!(text(&["bij", "bjk"], None, &[3, 3]).unwrap(), "bij,bjk->ik");
        assert_eq!(text(&["...ii"], Some("...i"), &[3]).unwrap(), "aii->ai");
        assert_eq!(text(&["...ab", "...bc"], Some("...ac"), &[4, 3]).unwrap(), "deab,ebc->deac");
        assert_eq!(text(&["ij"], Some("ji"), &[2]).unwrap(), "ij->ji");
    }

    #[test]
    fn an_equation_that_does_not_fit_is_refused() {
        assert!(text(&["ij"], None, &[3]).unwrap_err().contains("does not fit an operand of 3 dims"));
        assert!(text(&["i1"], None, &[2]).unwrap_err().contains("`1` is not a label"));
        assert!(text(&["ij"], Some("ik"), &[2]).unwrap_err().contains("label `k` of the result"));
    }
}
