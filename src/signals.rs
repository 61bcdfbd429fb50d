//! Signals that would end the process where an error can be told.

/// Lets a write beyond the limit on file sizes (`ulimit -f`) fail with an error. Unless the signal that comes with it is
/// ignored, it kills the process without a word.
#[cfg(unix)]
#[allow(unsafe_code)]
pub fn ignore_file_size_limit() {
    // SAFETY: ignoring a signal installs no handler, so no code runs in it; nothing else in the process sets this signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Does nothing: other systems have no such signal.
#[cfg(not(unix))]
pub fn ignore_file_size_limit() {}
