//! Faults of kernels on the processor: an access to memory that may not be touched, and the trap of an address that is not
//! aligned. The block in which a fault happens is given up, and the launch returns the fault as an error.
//!
//! The handler of the signals is installed once. It handles the faults of threads that run a kernel, and leaves the
//! others to the handler that was there before.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

/// The reason why a kernel could not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The kernel touched an address that it may not touch.
    Access {
        /// The first byte that may not be touched.
        address: usize,
        /// Whether the access was a write.
        writes: bool,
    },
    /// An address is not a multiple of the alignment of its type.
    Misaligned,
}

/// A kernel that the thread runs.
struct Running {
    /// Ends the block in the kernel's library, where the scheduler of fibers goes on.
    abandon: unsafe extern "C" fn(),
    fault: Option<Fault>,
}

thread_local! {
    static RUNNING: Cell<*mut Running> = const { Cell::new(ptr::null_mut()) };
}

/// Runs a kernel, and returns its fault if it has one. After a fault the thread continues in `abandon`, on the stack of the fiber that
/// faulted.
pub(super) fn caught<T>(abandon: unsafe extern "C" fn(), run: impl FnOnce() -> T) -> Result<T, Fault> {
    install();
    let mut running = Running { abandon, fault: None };
    let outer = RUNNING.replace(&raw mut running);
    let result = run();
    RUNNING.set(outer);
    running.fault.map_or(Ok(result), Err)
}

const SIGNALS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGTRAP];

/// The previous handlers, by their indices in [`SIGNALS`].
static BEFORE: OnceLock<[libc::sigaction; 4]> = OnceLock::new();

#[allow(unsafe_code)]
fn install() {
    BEFORE.get_or_init(|| {
        SIGNALS.map(|signal| {
            // SAFETY: an action of zeros is valid; the handler has the type that SA_SIGINFO requires, and calls nothing that a signal
            // may not interrupt.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handle as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(signal, &action, &mut before);
                before
            }
        })
    });
}

#[allow(unsafe_code)]
unsafe extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let running = RUNNING.get();
    // SAFETY: the pointer is to a value on this thread's stack, in a frame that has not returned. `info` and `context` are the
    // system's.
    let handled = !running.is_null() && unsafe { redirect(&mut *running, signal, info, context) };
    if handled {
        return;
    }
    // The instruction runs again when this handler returns, and its signal goes to the previous handler.
    let index = SIGNALS.iter().position(|own| *own == signal).unwrap_or_default();
    if let Some(before) = BEFORE.get() {
        // SAFETY: the system gave this action.
        unsafe { libc::sigaction(signal, &before[index], ptr::null_mut()) };
    }
}

/// Keeps the fault, and lets the thread continue in the library's `abandon`. Returns whether that is possible.
///
/// # Safety
/// `info` and `context` are those of a handler of `signal`, which the thread's kernel raised.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(unsafe_code)]
unsafe fn redirect(
    running: &mut Running,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) -> bool {
    /// Bytes below the stack pointer that a function may use without moving it, with a margin.
    const RED_ZONE: i64 = 512;
    /// The bit of a page fault's code that marks a write.
    const WRITES: i64 = 2;
    // SAFETY: the caller guarantees both pointers.
    let (info, context) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    let registers = &mut context.uc_mcontext.gregs;
    let fault = match signal {
        libc::SIGSEGV | libc::SIGBUS => Fault::Access {
            // SAFETY: signals of memory have an address.
            address: unsafe { info.si_addr() } as usize,
            writes: registers[libc::REG_ERR as usize] & WRITES != 0,
        },
        _ => Fault::Misaligned,
    };
    running.fault.get_or_insert(fault);
    // As in a call, the stack is aligned to 16 bytes before the return address.
    let stack = &mut registers[libc::REG_RSP as usize];
    *stack = ((*stack - RED_ZONE) & !15) - 8;
    registers[libc::REG_RIP as usize] = running.abandon as *const () as i64;
    true
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[allow(unsafe_code)]
unsafe fn redirect(_: &mut Running, _: c_int, _: *mut libc::siginfo_t, _: *mut c_void) -> bool {
    false
}
