//! The memory that this process can still take, on systems that report it (Linux), and memory that it gives back.

use crate::mapped::release_pages;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Returns the bytes that this process can still take: the machine's free memory and swap, limited by the process's control groups
/// (of a container or a job) and by its address space (`ulimit -v`). `None` if the system does not report them.
pub fn available() -> Option<u64> {
    let meminfo = read_to_string("/proc/meminfo").ok()?;
    let swap = kibibytes(&meminfo, "SwapFree:").unwrap_or(0);
    let free = kibibytes(&meminfo, "MemAvailable:")?.saturating_add(swap);
    let cache = read_to_string("/proc/spl/kstat/zfs/arcstats").ok().and_then(|text| zfs_cache(&text));
    let free = free.saturating_add(cache.unwrap_or(0));
    let of_groups = read_to_string("/proc/self/cgroup").ok();
    let of_groups = of_groups.and_then(|groups| left_to_groups(&groups, Path::new("/sys/fs/cgroup"), swap));
    let of_addresses =
        read_to_string("/proc/self/limits").ok().and_then(|limits| limit(&limits)).map(|limit| {
            let status = read_to_string("/proc/self/status").unwrap_or_default();
            limit.saturating_sub(kibibytes(&status, "VmSize:").unwrap_or(0))
        });
    [of_groups, of_addresses].into_iter().flatten().chain([free]).min()
}

/// Returns the bytes of this machine's memory. `None` if the system does not report them.
pub fn total() -> Option<u64> {
    kibibytes(&read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Gives back memory that the process holds and does not need: what its allocator keeps of freed values, and the pages of mapped files. This
/// takes some milliseconds. Call it between a part of the work that needs much memory and one that needs other memory.
pub fn give_back() {
    release_pages();
    // SAFETY: the function may be called at any time, by any thread.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code)]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Returns the bytes that the cache of ZFS gives back when they are needed, from the text of `arcstats`. The system counts them as
/// used.
/// <https://openzfs.github.io/openzfs-docs/man/master/4/zfs.4.html>
fn zfs_cache(arcstats: &str) -> Option<u64> {
    Some(word(arcstats, "size")?.saturating_sub(word(arcstats, "c_min").unwrap_or(0)))
}

/// Returns the last word of the line whose first word is `name`, as a number.
fn word(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().last()?.parse().ok()
}

/// The names of the files of a memory controller.
struct Controller {
    limit: &'static str,
    used: &'static str,
    /// Names in `memory.stat`: the cached pages of files, which the system gives back when memory is short.
    cached: [&'static str; 2],
    /// The files with the limit and the use of swap, if swap is counted apart from memory.
    swap: Option<[&'static str; 2]>,
}

/// <https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files>
const VERSION_2: Controller = Controller {
    limit: "memory.max",
    used: "memory.current",
    cached: ["inactive_file", "active_file"],
    swap: Some(["memory.swap.max", "memory.swap.current"]),
};

/// <https://docs.kernel.org/admin-guide/cgroup-v1/memory.html>
const VERSION_1: Controller = Controller {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
    swap: None,
};

/// Returns the bytes that the limits of the process's groups leave, from the text of `/proc/self/cgroup` and the files under
/// `root`. `swap` is the machine's free swap in bytes. `None` if there is no limit.
fn left_to_groups(groups: &str, root: &Path, swap: u64) -> Option<u64> {
    let lines = groups.lines().filter_map(|line| {
        let [number, controllers, path] = line.splitn(3, ':').collect::<Vec<_>>().try_into().ok()?;
        Some((number, controllers, path))
    });
    let left = lines.filter_map(|(number, controllers, path)| match number {
        "0" => left_in_tree(&VERSION_2, root, path, swap),
        _ if controllers.split(',').any(|name| name == "memory") => {
            left_in_tree(&VERSION_1, &root.join("memory"), path, swap)
        }
        _ => None,
    });
    left.min()
}

/// Returns the least that any group on the path leaves. A container may show its own group as the root.
fn left_in_tree(controller: &Controller, root: &Path, path: &str, swap: u64) -> Option<u64> {
    let mut folders: Vec<PathBuf> = vec![root.to_owned()];
    let names = path.split('/').filter(|name| !name.is_empty() && *name != "..");
    names.for_each(|name| folders.push(folders[folders.len() - 1].join(name)));
    folders.iter().filter_map(|folder| controller.left(folder, swap)).min()
}

impl Controller {
    /// Returns the bytes that the limits of the group in `folder` leave, if the machine has `free_swap` bytes of free swap. `None`
    /// if its memory has no limit.
    fn left(&self, folder: &Path, free_swap: u64) -> Option<u64> {
        let read = |name: &str| read_to_string(folder.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let (limit, used) = (number(self.limit)?, number(self.used).unwrap_or(0));
        let stat = read("memory.stat").unwrap_or_default();
        let cached = self.cached.iter().filter_map(|name| word(&stat, name)).fold(0, u64::saturating_add);
        let swap_limit = |name: &str| match read(name)?.trim() {
            "max" => Some(u64::MAX),
            limit => limit.parse().ok(),
        };
        let swap = self.swap.and_then(|[limit, used]| Some(swap_limit(limit)?.saturating_sub(number(used)?)));
        let left = limit.saturating_sub(used.saturating_sub(cached));
        Some(left.saturating_add(swap.unwrap_or(0).min(free_swap)))
    }
}

/// Returns the bytes in a line such as `NAME: 12 kB`.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the soft limit on the address space in bytes, from the text of `/proc/self/limits`. `None` if there is no limit.
fn limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_meminfo_is_in_kibibytes() {
        let text = "MemTotal: 100 kB\nMemAvailable:   24 kB\nSwapFree:  8 kB\n";
        assert_eq!(kibibytes(text, "MemAvailable:"), Some(24 * 1024));
        assert_eq!(kibibytes("MemTotal: 100 kB\n", "MemAvailable:"), None);
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
    fn the_cache_of_zfs_is_free_down_to_its_least_size() {
        let text = "9 1 0x01 123 33456 1 2\nname type data\nsize   4  5000\nc_min  4  2000\nc  4  9\n";
        assert_eq!(zfs_cache(text), Some(3000));
        assert_eq!(zfs_cache("name type data\n"), None);
    }

    /// Creates a tree of groups with these files.
    fn groups(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_smallest_limit_of_the_groups_above_a_process_counts() {
        let root = groups(&[
            ("jobs/memory.max", "1000\n"),
            ("jobs/memory.current", "700\n"),
            ("jobs/memory.stat", "anon 100\ninactive_file 30\nactive_file 20\n"),
            ("jobs/one/memory.max", "max\n"),
            ("jobs/one/memory.current", "600\n"),
            ("jobs/two/memory.max", "400\n"),
            ("jobs/two/memory.current", "500\n"),
            ("free/memory.max", "max\n"),
        ]);
        let left = |path: &str| left_to_groups(&format!("0::{path}\n"), root.path(), 0);
        assert_eq!(left("/jobs/one"), Some(350));
        assert_eq!(left("/jobs/two"), Some(0));
        assert_eq!((left("/free"), left("/"), left("/of/another/container")), (None, None, None));
    }

    #[test]
    fn swap_that_a_group_may_use_counts() {
        let root = groups(&[
            ("memory.max", "1000\n"),
            ("memory.current", "700\n"),
            ("memory.swap.max", "50\n"),
            ("memory.swap.current", "20\n"),
        ]);
        // A container without its own cgroup namespace shows a path that does not exist inside it.
        let left = |free_swap| left_to_groups("0::/docker/0123\n", root.path(), free_swap);
        assert_eq!((left(4000), left(10), left(0)), (Some(330), Some(310), Some(300)));
        // A group without a swap limit may use all swap of the machine, but no more memory than before.
        std::fs::write(root.path().join("memory.swap.max"), "max\n").unwrap();
        assert_eq!((left(4000), left(0)), (Some(4300), Some(300)));
    }

    #[test]
    fn a_limit_of_the_first_version_of_groups_counts() {
        let root = groups(&[
            ("memory/jobs/memory.limit_in_bytes", "1000\n"),
            ("memory/jobs/memory.usage_in_bytes", "700\n"),
            ("memory/jobs/memory.stat", "inactive_file 1\ntotal_inactive_file 100\n"),
        ]);
        let text = "12:cpu,cpuacct:/jobs\n7:memory:/jobs\n0::/\n";
        assert_eq!(left_to_groups(text, root.path(), 4000), Some(400));
    }

    #[test]
    fn this_machine_has_some_memory() {
        assert!(available().is_none_or(|bytes| bytes > 0));
    }
}
