//! Patterns over names: `*` stands for any text, `?` for one character.

/// Whether the whole name fits the pattern.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // The search is greedy and backtracks to one point only: the last star, and the end of the text that it matched.
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, end)) => {
                    star = Some((at, end + 1));
                    (p, n) = (at + 1, end + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stands_for_any_text_and_a_question_mark_for_one_character() {
        for (pattern, name) in
            [("*", ""), ("h.*.weight", "h.0.attn.weight"), ("?.b", "a.b"), ("a*b*c", "aXbXbXc")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("", "a"), ("h.*.weight", "h.0.bias"), ("?", ""), ("a*b", "abc"), ("a", "ab")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_take_no_more_than_quadratic_time() {
        assert!(!matches(&"*a".repeat(50), &"b".repeat(100_000)));
    }
}
