//! Signals that would end the process where an error can be told, and a parent's end, which comes without a signal.

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

/// Installs handlers of signals by `install`, and ignores those of SIGHUP and SIGINT again that the process was started to ignore, as
/// `nohup` and a shell's `&` start it.
///
/// # Errors
/// Those of `install`.
#[cfg(unix)]
#[allow(unsafe_code)]
pub fn keeping_ignored<E>(install: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    let is_ignored = |signal: &libc::c_int| {
        // SAFETY: all bytes zero are a value of the struct of numbers and pointers, and a null action only asks for the present one.
        let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
        let asked = unsafe { libc::sigaction(*signal, std::ptr::null(), &mut now) };
        asked == 0 && now.sa_sigaction == libc::SIG_IGN
    };
    let ignored: Vec<libc::c_int> = [libc::SIGHUP, libc::SIGINT].into_iter().filter(is_ignored).collect();
    install()?;
    for signal in ignored {
        // SAFETY: ignoring a signal installs no handler, so no code runs in it.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    Ok(())
}

/// Installs handlers of signals by `install`.
///
/// # Errors
/// Those of `install`.
#[cfg(not(unix))]
pub fn keeping_ignored<E>(install: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    install()
}

/// Ends this process soon after its parent has ended, however that happened. Nothing is flushed or given back: what the
/// process waits for may never come.
#[cfg(unix)]
#[allow(unsafe_code)]
pub fn end_with_parent() {
    const PERIOD: std::time::Duration = std::time::Duration::from_millis(200);
    let parent = std::os::unix::process::parent_id();
    std::thread::spawn(move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(PERIOD);
        }
        // SAFETY: it ends the process at once, and runs no handlers that could see half of anything.
        unsafe { libc::_exit(1) }
    });
}

/// Does nothing: other systems give no process another parent.
#[cfg(not(unix))]
pub fn end_with_parent() {}
