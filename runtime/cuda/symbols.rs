//! Looks up functions of CUDA's libraries by name, in the very file that [`super::libraries`] opened.
//!
//! cudarc would open a library by its name alone. It might find another file, and it panics if that file lacks a function.

use libloading::os::unix::Library;
use std::ffi::c_void;

/// A library, or a list of the names that a library exports.
pub(super) trait Symbols {
    /// Returns the address of a function.
    ///
    /// # Errors
    /// The library does not export the name.
    fn address(&self, name: &str) -> Result<*const c_void, String>;
}

impl Symbols for Library {
    #[allow(unsafe_code)]
    fn address(&self, name: &str) -> Result<*const c_void, String> {
        // SAFETY: the address is not used here; the caller of the function answers for its type.
        unsafe { self.get::<*const c_void>(name.as_bytes()) }.map(|found| *found).map_err(|_| missing(name))
    }
}

/// Returns the error for a name that has no address.
fn missing(name: &str) -> String {
    format!("the library has no function {name}")
}

/// Returns a function of a library.
///
/// # Safety
/// `F` is a pointer to a function of the type that the library's header declares for the name. The library is never closed.
#[allow(unsafe_code)]
pub(super) unsafe fn function<F: Copy>(symbols: &dyn Symbols, name: &str) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    let address = symbols.address(name)?;
    // SAFETY: the caller answers for the type, whose size is compared above.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

/// Declares the functions of a library that are used, each with its exported name and its type in the library's header, as a struct whose
/// `of` looks them up. The library is never closed.
macro_rules! functions {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[$field_meta:meta])*
                $field_vis:vis $field:ident: $symbol:literal fn($($argument:ty),* $(,)?) $(-> $result:ty)?,
            )*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $name {
            /// Looks the functions up.
            ///
            /// # Errors
            /// The library has no function of a name.
            #[allow(unsafe_code)]
            $vis fn of(symbols: &dyn $crate::symbols::Symbols) -> Result<Self, String> {
                // SAFETY: the declaration has the types of the library's header; the library is never closed.
                Ok(unsafe { Self { $($field: $crate::symbols::function(symbols, $symbol)?,)* } })
            }
        }
    };
}
pub(super) use functions;

#[cfg(test)]
pub(super) mod testing;
