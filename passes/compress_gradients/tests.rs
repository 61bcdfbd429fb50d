//! The options of a method, as text.

use super::Method;

#[test]
fn a_method_is_read_as_it_is_written() {
    for text in ["powersgd:rank=4", "powersgd:rank=16,min-rate=0", "powersgd:rank=1,min-rate=2.5", "bf16"] {
        assert_eq!(text.parse::<Method>().expect("it is a method").to_string(), text);
    }
    assert_eq!("powersgd".parse::<Method>().expect("it is a method").to_string(), "powersgd:rank=4");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    for (text, says) in [
        ("powersgd:rank=0", "rank=0 leaves no column to send"),
        ("powersgd:min-rate=-1", "min-rate=-1 is not allowed"),
        ("powersgd:rank=x", "`x` is not a value of `rank`"),
        ("powersgd:seed=1", "powersgd has no option `seed`"),
        ("bf16:rank=4", "bf16 has no option `rank`"),
        ("topk", "give a method: powersgd, or bf16"),
    ] {
        let error = text.parse::<Method>().expect_err(text);
        assert!(error.contains(says), "{text}: {error}");
    }
}
