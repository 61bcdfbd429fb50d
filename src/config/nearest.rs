//! The nearest of the known names to one that is unknown.

/// The candidate with the smallest edit distance to `name`; the first of equals, `None` without candidates.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates.into_iter().min_by_key(|candidate| edit_distance(name, candidate))
}

/// Insertions, deletions, substitutions and swaps of neighbours that turn `from` into `to` (the restricted
/// Damerau-Levenshtein distance), in characters.
pub fn edit_distance(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().collect();
    let to: Vec<char> = to.chars().collect();
    let mut rows = vec![vec![0; to.len() + 1]; from.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=from.len() {
        for j in 1..=to.len() {
            let substitution = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut best = substitution.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_single_edits_and_swaps() {
        assert_eq!(edit_distance("", "seed"), 4);
        assert_eq!(edit_distance("seed", "seed"), 0);
        assert_eq!(edit_distance("sede", "seed"), 1);
        assert_eq!(edit_distance("stepz", "steps"), 1);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }

    #[test]
    fn the_nearest_of_equals_is_the_first() {
        assert_eq!(nearest("xa", ["ya", "za"]), Some("ya"));
        assert_eq!(nearest("xa", []), None);
    }
}
