//! Signals that would end the process before it can tell an error, and the end of the parent process, which sends no signal.

/// Lets a write beyond the limit on file sizes (`ulimit -f`) fail with an error. Unless the signal that comes with it is
/// ignored, it kills the process without a word.
#[allow(unsafe_code)]
pub fn ignore_file_size_limit() {
    // SAFETY: ignoring a signal installs no handler, so no code runs in it; nothing else in the process sets this signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Installs signal handlers by `install`, and then ignores SIGHUP and SIGINT again, if the process was started with them ignored, as `nohup` and
/// a shell's `&` do.
///
/// # Errors
/// As of `install`.
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

/// Ends this process soon after its parent has ended. Nothing is flushed or released, because the process may wait for something that never
/// comes.
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
