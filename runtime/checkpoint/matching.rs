//! Matches tensors of a weights file with states, and finds out whether a tensor is stored transposed.
//!
//! Names are tried in this order: the model file's tensor, the state, the module paths. A tensor with the model file's own name has the
//! model file's layout. A tensor with a module path is PyTorch's, and the exporter that renamed it often stored it transposed. Its sizes
//! tell the layout. If they cannot (a square matrix), the other matrices of the file decide.

use super::padding;
use super::tensor_file::{Entry, TensorFile};
use ir::{Module, Role, State};
use std::collections::BTreeMap;

/// A state, with the tensor that has one of its names.
#[derive(Clone, Debug)]
pub(super) struct Match<'m> {
    pub(super) state: &'m State,
    pub(super) tensor: String,
    pub(super) lies: Lies,
}

/// The layout of a tensor of a weights file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lies {
    /// The layout of the state.
    AsState,
    /// The layout of the model file's tensor, of which the state is a view.
    AsFile,
    /// The layout of the model file's tensor, for a matrix with a module path.
    Straight,
    /// The transposed layout of the model file's tensor, for a matrix with a module path.
    Transposed,
    /// One of the last two, since the matrix is square.
    Square,
}

/// The result of matching names.
#[derive(Debug, Default)]
pub(super) struct Matching<'m> {
    pub(super) matches: Vec<Match<'m>>,
    /// States that match the name of no tensor.
    pub(super) without: Vec<String>,
    /// Tensors with a matching name that do not fit, with the reason.
    pub(super) refused: Vec<String>,
}

/// Matches the parameters and buffers of `module` with the tensors of `file`. `aliases` has other names for rows of the data table.
pub(super) fn decide<'m>(
    module: &'m Module,
    file: &TensorFile,
    aliases: &BTreeMap<String, Vec<String>>,
) -> Matching<'m> {
    let mut matching = Matching::default();
    for state in module.states.values().filter(|state| matches!(state.role, Role::Parameter | Role::Buffer)) {
        let names = if file.of_states { vec![state.name.as_str()] } else { names(module, state, aliases) };
        let Some((name, entry)) = names.into_iter().find_map(|name| Some((name, file.entry(name)?))) else {
            matching.without.push(state.name.clone());
            continue;
        };
        match lies(module, state, name, entry, file.of_states) {
            Ok(lies) => matching.matches.push(Match { state, tensor: name.to_owned(), lies }),
            Err(reason) => matching.refused.push(reason),
        }
    }
    settle_squares(&mut matching.matches, file);
    matching
}

fn names<'m>(
    module: &'m Module,
    state: &'m State,
    aliases: &'m BTreeMap<String, Vec<String>>,
) -> Vec<&'m str> {
    let row = state.initializer.data().map(|row| module.data[row].name.as_str());
    let others = row.and_then(|row| aliases.get(row)).into_iter().flatten().map(String::as_str);
    row.into_iter().chain([state.name.as_str()]).chain(others).collect()
}

fn lies(module: &Module, state: &State, name: &str, entry: &Entry, of_states: bool) -> Result<Lies, String> {
    let found =
        entry.dtype.clone().map_err(|dtype| format!("`{name}` holds {dtype}, which is not supported"))?;
    let row = state.initializer.data().map(|row| &module.data[row]).filter(|_| !of_states);
    let own = padding::unpadded_type(state).unwrap_or_else(|| state.ty.clone());
    let wanted = row.map_or(&own, |row| &row.ty);
    let sizes = wanted.sizes().unwrap_or_default();
    let same = entry.dims == sizes;
    let by_path = row.is_some_and(|row| row.name != name) && sizes.len() == 2;
    let lies = match row {
        None if same => Lies::AsState,
        Some(_) if by_path && same && sizes[0] == sizes[1] => Lies::Square,
        Some(_) if by_path && same => Lies::Straight,
        Some(_) if by_path && entry.dims.iter().eq(sizes.iter().rev()) => Lies::Transposed,
        Some(_) if same => Lies::AsFile,
        _ => return Err(format!("`{name}` is {found}{:?}, `{}` takes {wanted}", entry.dims, state.name)),
    };
    let converts = found == wanted.dtype || (found.is_float() && wanted.dtype.is_float());
    if converts {
        Ok(lies)
    } else {
        Err(format!("`{name}` holds {found}, `{}` takes {}", state.name, wanted.dtype))
    }
}

/// Gives square matrices the layout of most other matrices of the file. Without a majority, they are transposed if PyTorch wrote the file.
fn settle_squares(matches: &mut [Match], file: &TensorFile) {
    let count = |lies| matches.iter().filter(|found| found.lies == lies).count();
    let (transposed, straight) = (count(Lies::Transposed), count(Lies::Straight));
    let turn = transposed > straight || (transposed == straight && file.of_pytorch);
    for found in matches.iter_mut().filter(|found| found.lies == Lies::Square) {
        found.lies = if turn { Lies::Transposed } else { Lies::Straight };
    }
}
