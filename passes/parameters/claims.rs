//! Weighs a claim about a tensor against its uses.

use super::{Evidence, Finding};
use crate::analysis::constants::{any_element, first_elements};
use ir::{Claim, Data, DataId, Module};

/// Decides about a tensor by its claim and by `found`, the evidence of its uses.
pub(super) fn weigh(module: &Module, data: DataId, found: Finding) -> Finding {
    let row = &module.data[data];
    let use_of = found.reason().to_owned();
    let parameter = |why: &str| Evidence::Parameter(format!("{why}; {use_of}"));
    let constant = |why: &str| Evidence::Constant(why.into());
    let evidence = match row.claim {
        None if matches!(found.evidence, Evidence::Ambiguous(_)) && is_sinusoidal(row) => {
            constant("a table of sines and cosines")
        }
        None => return found,
        Some(Claim::Asked) => parameter("named by --train-also"),
        Some(Claim::Parameter) => parameter("listed by the exporter"),
        Some(Claim::Buffer) => constant("listed as a buffer by the exporter"),
        Some(Claim::Unlisted) => constant("not among the parameters that the exporter lists"),
        Some(Claim::Computed) => match found.evidence {
            Evidence::Constant(_) => return found,
            _ if is_binary(row) => constant("a mask of zeros and ones"),
            _ if is_sinusoidal(row) => constant("a table of sines and cosines"),
            _ => Evidence::None(format!("computed by the exporter, perhaps from parameters; {use_of}")),
        },
        Some(Claim::Literal) => {
            constant("a constant of the model's code, which the exporter wrote as a node")
        }
        Some(Claim::Named) => match (named_constant(module, row), found.evidence) {
            (Some(why), _) => constant(why),
            (None, _) if found.is_compared => constant(&format!("no gradient comes to it; {use_of}")),
            (None, _) if is_sinusoidal(row) => constant("a table of sines and cosines"),
            // A layer that starts as the identity has a weight of zeros and ones.
            (None, Evidence::Parameter(_)) if is_binary(row) => Evidence::Named(format!(
                "the name is a parameter's, although the tensor holds only zeros and ones; {use_of}"
            )),
            (None, Evidence::None(_) | Evidence::Ambiguous(_)) if is_binary(row) => {
                constant("a mask of zeros and ones")
            }
            (None, Evidence::None(_) | Evidence::Ambiguous(_)) => {
                Evidence::Named(format!("the name is a parameter's; {use_of}"))
            }
            (None, proven) => proven,
        },
    };
    Finding { evidence, ..found }
}

/// Returns the reason why the name of a tensor says that it is no parameter.
pub(super) fn named_constant(module: &Module, row: &Data) -> Option<&'static str> {
    let (stem, leaf) = row.name.rsplit_once('.').map_or(("", &row.name[..]), |(stem, leaf)| (stem, leaf));
    let exists = |name: String| module.data.values().any(|other| other.name == name);
    let weight_of_spectral_norm =
        |vector: &str| row.name.strip_suffix(vector).map(|name| format!("{name}_orig"));
    if matches!(leaf, "running_mean" | "running_var") {
        return Some("the name is a running statistic's");
    }
    let old_form = weight_of_spectral_norm("_u").or(weight_of_spectral_norm("_v"));
    let is_parametrized = stem.contains("parametrizations.") && matches!(leaf, "_u" | "_v");
    (is_parametrized || old_form.is_some_and(exists)).then_some("a singular vector of a spectral norm")
}

/// The most elements of a table of positions.
const LARGEST_TABLE: u64 = 1 << 24;

/// Whether the rows of a table hold the sines and cosines of some angles, as position embeddings that are not trained do (Vaswani
/// et al., arXiv 1706.03762, section 3.5): the squares of a row add up to half its length.
fn is_sinusoidal(row: &Data) -> bool {
    let sizes = row.ty.sizes().unwrap_or_default();
    let [.., rows, length] = sizes[..] else { return false };
    let small = row.ty.numel().is_some_and(|count| count <= LARGEST_TABLE);
    if rows < 2 || length < 4 || !length.is_multiple_of(2) || !small {
        return false;
    }
    let half = length as f64 / 2.0;
    let is_of_angles = |row: &[f64]| {
        let squares: f64 = row.iter().map(|x| x * x).sum();
        (squares - half).abs() <= 1e-3 * half && row.iter().all(|x| x.abs() <= 1.0 + 1e-6)
    };
    // Most matrices fail already in their first row.
    let first = first_elements(row, row.ty.ndim() - 1);
    if first.is_none_or(|first| !is_of_angles(first.floats())) {
        return false;
    }
    let Some(table) = ir::interp::file_tensor(row) else { return false };
    let mut rows = table.floats().chunks(length as usize);
    rows.all(is_of_angles) && any_element(row, |x| x != 1.0 && x != -1.0 && x != 0.0) == Some(true)
}

/// Whether a matrix or a larger tensor holds nothing but zeros and ones, and both of them.
fn is_binary(row: &Data) -> bool {
    let holds = |number: f64| any_element(row, |x| x == number) == Some(true);
    row.ty.ndim() >= 2
        && any_element(row, |x| x != 0.0 && x != 1.0) == Some(false)
        && holds(0.0)
        && holds(1.0)
}
