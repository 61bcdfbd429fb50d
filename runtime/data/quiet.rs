//! Calls of a library that panics on some user files: the panic becomes an error, and nothing is printed.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread becomes an error, so that its message is not printed.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Returns the result of `compute` or, if it panics, the panic's message. Panics of other threads are printed as usual.
pub(super) fn quietly<T>(compute: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                before(panic);
            }
        }));
    });
    let was_quiet = QUIET.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(compute));
    QUIET.set(was_quiet);
    result.map_err(|payload| message(&*payload))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("the error has no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_gives_its_message_and_ends_the_quiet() {
        assert_eq!(quietly(|| 3), Ok(3));
        let number = 4;
        assert_eq!(quietly(|| panic!("of {number}")), Err::<(), _>("of 4".to_owned()));
        assert_eq!(quietly(|| panic!("plain")), Err::<(), _>("plain".to_owned()));
        let inner = quietly(|| {
            let _ = quietly::<()>(|| panic!("inner"));
            QUIET.get()
        });
        assert_eq!((inner, QUIET.get()), (Ok(true), false));
    }
}
