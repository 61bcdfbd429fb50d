//! The memory that this process can still take, where the system says so (Linux).

use std::fs::read_to_string;

/// Bytes that this process can still take: what the machine has free, swap included, and no more than the limit on the
/// process's address space leaves (`ulimit -v`). `None` where the system does not say.
pub fn available() -> Option<u64> {
    let free = free(&read_to_string("/proc/meminfo").ok()?)?;
    let left = read_to_string("/proc/self/limits").ok().and_then(|limits| limit(&limits)).map(|limit| {
        let status = read_to_string("/proc/self/status").unwrap_or_default();
        limit.saturating_sub(kibibytes(&status, "VmSize:").unwrap_or(0))
    });
    Some(left.map_or(free, |left| left.min(free)))
}

/// Free bytes by the text of `/proc/meminfo`.
fn free(meminfo: &str) -> Option<u64> {
    let swap = kibibytes(meminfo, "SwapFree:").unwrap_or(0);
    Some(kibibytes(meminfo, "MemAvailable:")?.saturating_add(swap))
}

/// The bytes that a line `NAME: 12 kB` says.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The soft limit on the address space in bytes by the text of `/proc/self/limits`; `None` if there is no limit.
fn limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_what_is_available_and_swap() {
        let text = "MemTotal: 100 kB\nMemAvailable:   24 kB\nSwapFree:  8 kB\n";
        assert_eq!(free(text), Some(32 * 1024));
        assert_eq!(free("MemAvailable: 1 kB\n"), Some(1024));
        assert_eq!(free("MemTotal: 100 kB\n"), None);
    }

    #[test]
    fn an_address_space_without_a_limit_limits_nothing() {
        let line = |soft: &str| {
            format!("Limit  Soft Limit  Hard Limit  Units\nMax address space  {soft}  unlimited  bytes\n")
        };
        assert_eq!(limit(&line("4096")), Some(4096));
        assert_eq!(limit(&line("unlimited")), None);
    }

    #[test]
    fn this_machine_has_some_memory() {
        assert!(available().is_none_or(|bytes| bytes > 0));
    }
}
