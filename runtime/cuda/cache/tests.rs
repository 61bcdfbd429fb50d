//! Tests that a cache returns the right bytes whatever its folder contains.

use super::*;
use std::cell::Cell;
use std::convert::Infallible;

const KEY: &str = "a kernel";

/// Returns the cache's bytes, and whether they had to be made.
fn get(cache: &Cache, key: &str, bytes: &[u8]) -> (Vec<u8>, bool) {
    let made = Cell::new(false);
    let make = || {
        made.set(true);
        Ok::<_, Infallible>(bytes.to_vec())
    };
    let Ok(got) = cache.get_or(Key::of(&[key]), make);
    (got, made.get())
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn what_is_kept_is_not_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("not/there/yet");
    assert_eq!(get(&Cache::at(&place), KEY, b"cubin"), (b"cubin".to_vec(), true));
    let again = Cache::at(&place);
    assert_eq!(get(&again, KEY, b"another"), (b"cubin".to_vec(), false));
    assert_eq!(get(&again, "another kernel", b"another"), (b"another".to_vec(), true));
    assert_eq!(again.trouble(), None);
    assert_eq!(files(&place).len(), 2);
}

#[test]
fn a_damaged_file_is_replaced_with_one_warning() {
    let folder = tempfile::tempdir().unwrap();
    get(&Cache::at(folder.path()), KEY, b"a cubin of some length");
    let file = files(folder.path()).remove(0);
    let whole = fs::read(&file).unwrap();
    let other = packed(Key::of(&["another kernel"]), b"a cubin of some length");
    let longer = [&whole[..], b"more"].concat();
    let flipped = (0..whole.len()).map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        bytes
    });
    let truncated = (0..whole.len()).map(|length| whole[..length].to_vec());
    for damaged in flipped.chain(truncated).chain([other, longer]) {
        fs::write(&file, damaged).unwrap();
        let cache = Cache::at(folder.path());
        assert_eq!(get(&cache, KEY, b"a cubin of some length"), (b"a cubin of some length".to_vec(), true));
        assert!(cache.trouble().unwrap().contains("was damaged"));
        assert_eq!(cache.unkept(), None, "it is written again");
        assert_eq!(fs::read(&file).unwrap(), whole);
        assert!(!get(&cache, KEY, b"").1);
    }
}

#[test]
fn a_folder_that_cannot_be_written_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    // Even a user with all permissions can create nothing below a file, nor below /proc.
    fs::write(folder.path().join("file"), "").unwrap();
    for place in [folder.path().join("file/cubins"), PathBuf::from("/proc/cubins")] {
        let cache = Cache::at(place);
        for _ in 0..3 {
            assert_eq!(get(&cache, KEY, b"cubin"), (b"cubin".to_vec(), true));
        }
        assert!(cache.trouble().is_some());
        assert!(cache.unkept().unwrap().contains("are not kept"));
    }
}

#[test]
fn a_folder_that_is_read_only_is_read() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    get(&Cache::at(folder.path()), KEY, b"cubin");
    let allow = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
    allow(0o555);
    let cache = Cache::at(folder.path());
    assert_eq!(get(&cache, KEY, b""), (b"cubin".to_vec(), false));
    assert_eq!(get(&cache, "another kernel", b"another"), (b"another".to_vec(), true));
    allow(0o755);
}

#[test]
fn a_folder_in_the_place_of_a_file_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    get(&Cache::at(folder.path()), KEY, b"cubin");
    let file = files(folder.path()).remove(0);
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(file.join("full")).unwrap();
    let cache = Cache::at(folder.path());
    assert_eq!(get(&cache, KEY, b"cubin"), (b"cubin".to_vec(), true));
    assert!(cache.trouble().is_some());
    assert_eq!(files(folder.path()), [file], "what was being written is gone");
}

#[test]
fn without_a_folder_everything_is_made() {
    let cache = Cache::default();
    assert_eq!([get(&cache, KEY, b"cubin").1, get(&cache, KEY, b"cubin").1], [true, true]);
    assert_eq!(cache.trouble(), None);
}

#[test]
fn what_fails_to_be_made_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    assert_eq!(cache.get_or(Key::of(&[KEY]), || Err("it does not compile")), Err("it does not compile"));
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
}

#[test]
fn many_at_once_get_whole_files() {
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..1 << 18).map(|i: u32| (i % 251) as u8).collect();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for round in 0..20 {
                    let cache = Cache::at(folder.path());
                    assert_eq!(get(&cache, &format!("kernel {}", round / 4), &bytes).0, bytes);
                    assert_eq!(cache.trouble(), None);
                }
            });
        }
    });
    assert_eq!(files(folder.path()).len(), 5, "nothing but whole files stays");
}

#[test]
fn texts_are_kept_apart() {
    let keys = [Key::of(&["ab", "c"]), Key::of(&["a", "bc"]), Key::of(&["abc"]), Key::of(&["abc", ""])];
    for (i, key) in keys.iter().enumerate() {
        assert!(!keys[..i].contains(key));
    }
}

#[test]
fn the_folder_is_the_users_unless_one_is_named() {
    let of = |set: &[(&str, &str)]| {
        folder(|name| Some(set.iter().find(|(other, _)| *other == name)?.1.into()))
            .map(|path| path.display().to_string())
    };
    let home = ("HOME", "/home/u");
    assert_eq!(of(&[home]).as_deref(), Some("/home/u/.cache/trainyard/cubins"));
    assert_eq!(of(&[home, ("XDG_CACHE_HOME", "/c")]).as_deref(), Some("/c/trainyard/cubins"));
    assert_eq!(of(&[home, ("XDG_CACHE_HOME", "c")]).as_deref(), Some("/home/u/.cache/trainyard/cubins"));
    assert_eq!(of(&[home, (FOLDER, "/t")]).as_deref(), Some("/t/cubins"));
    assert_eq!(of(&[home, (FOLDER, "")]).as_deref(), Some("/home/u/.cache/trainyard/cubins"));
    assert_eq!(of(&[]), None);
}
