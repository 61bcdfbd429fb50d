//! Checkpoints that are read again, refused, or found damaged.

use super::*;
use crate::Checkpoints;
use crate::testing::{data, description, module, module_with, saved, values};
use ir::DType;

#[test]
fn a_checkpoint_of_another_model_is_refused_with_the_differences() {
    let (_folder, checkpoints) = saved(&[1]);
    let other = module_with(&[("weight", DType::F32, &[3, 2]), ("bias", DType::F32, &[2])]);
    let checkpoint = checkpoints.latest().unwrap().checkpoint.unwrap();
    let error = ir::Diagnostic::from(checkpoint.load(&other).unwrap_err()).to_string();
    assert!(error.contains("missing in the checkpoint: `bias` f32[2]"), "{error}");
    assert!(
        error.contains("not in this program: `empty` f32[0, 4], `half` bf16[3], `step` i64[]"),
        "{error}"
    );
    assert!(
        error.contains(
            "`weight` is f32[3, 2] parameter in this program and f32[2, 3] parameter in the checkpoint"
        ),
        "{error}"
    );
    assert!(error.contains("--weights"), "{error}");
}

/// Padding belongs to the mesh: a checkpoint made on one mesh can be resumed on another.
#[test]
fn a_checkpoint_does_not_know_of_padding() {
    let padded = |after: u64| {
        let mut module = module_with(&[("weight", DType::U8, &[3 + after, 2])]);
        if after > 0 {
            let state = module.states.values_mut().next().unwrap();
            state.view.push(ir::ViewStep::Pad { dim: 0, after });
        }
        let mut value: Vec<u8> = (1..=6).collect();
        value.resize(6 + 2 * after as usize, 0);
        (module, StateBytes::from([("weight".to_owned(), value.into())]))
    };
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"));
    let mut files = Vec::new();
    for (step, after) in [(1, 0), (2, 1), (3, 5)] {
        let (module, values) = padded(after);
        let position = description(step).position;
        let path = checkpoints.save(&module, &Description::new(&module, position, data()), &values).unwrap();
        files.push(fs::read(path.join(STATES)).unwrap());
        for other in [0, 1, 5] {
            let (module, values) = padded(other);
            let checkpoint = checkpoints.latest().unwrap().checkpoint.unwrap();
            assert_eq!(checkpoint.load(&module).unwrap(), values);
        }
    }
    assert!(files[0] == files[1] && files[1] == files[2]);
}

#[test]
fn a_table_that_does_not_fit_its_tensors_is_damaged() {
    let (_folder, checkpoints) = saved(&[1]);
    let path = checkpoints.path(1).join(DESCRIPTION);
    let mut document = Document::of_bytes(&fs::read(&path).unwrap()).unwrap();
    document.description.states[1].dtype = "f64".to_owned();
    fs::write(&path, document.to_bytes()).unwrap();
    let error = Checkpoint::open(&checkpoints.path(1)).unwrap_err().to_string();
    assert!(error.contains("`weight` f64[2, 3]"), "{error}");
}

#[test]
fn hostile_json_is_an_error_and_not_a_panic() {
    let (_folder, checkpoints) = saved(&[1]);
    let good = fs::read_to_string(checkpoints.path(1).join(DESCRIPTION)).unwrap();
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let cases = [
        String::new(),
        "null".to_owned(),
        deep,
        good.replace("\"step\": 1", "\"step\": -1"),
        good.replace("\"format\": 2", "\"format\": 1e99"),
        good.replace("\"format\": 2", "\"format\": 1"),
        good.replace("\"states\"", "\"other\""),
        good.replace("2,\n", "\"two\",\n"),
    ];
    for text in cases {
        assert_ne!(text, good);
        fs::write(checkpoints.path(1).join(DESCRIPTION), &text).unwrap();
        assert!(Checkpoint::open(&checkpoints.path(1)).is_err(), "{}", &text[..text.len().min(200)]);
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]
    /// Damage at any place is an error, or does not change the values.
    #[test]
    fn no_damage_gives_other_values(
        states: bool, place: proptest::sample::Index, bit in 0u8..8, cut: Option<proptest::sample::Index>,
    ) {
        let (_folder, checkpoints) = saved(&[1]);
        let path = checkpoints.path(1).join(if states { STATES } else { DESCRIPTION });
        let mut bytes = fs::read(&path).unwrap();
        *place.get_mut(&mut bytes) ^= 1 << bit;
        bytes.truncate(cut.map_or(usize::MAX, |cut| cut.index(bytes.len())));
        fs::write(&path, bytes).unwrap();
        if let Ok(values) = Checkpoint::open(&checkpoints.path(1)).and_then(|found| found.load(&module())) {
            proptest::prop_assert_eq!(values, super::super::testing::values(1));
        }
    }
}

const RULES: [HashRule; 3] = [HashRule::Whole, HashRule::Samples, HashRule::SamplesOfFormat1];

/// Returns a checkpoint that was made with the data in a file of these bytes, and that file.
fn of_data(bytes: &[u8], rule: HashRule) -> (tempfile::TempDir, Checkpoint, DataFiles) {
    let (folder, checkpoints) = saved(&[1]);
    let mut checkpoint = checkpoints.latest().unwrap().checkpoint.unwrap();
    let files = DataFiles { train: Some(folder.path().join("data.bin")), ..DataFiles::default() };
    fs::write(folder.path().join("data.bin"), bytes).unwrap();
    let like = DataFingerprint { rule, ..DataFingerprint::synthetic() };
    let fingerprint = files.fingerprint_like(&like).unwrap();
    // The fingerprint as a file stores it.
    let text = serde_json::to_string(&fingerprint).unwrap();
    checkpoint.description.data = serde_json::from_str(&text).unwrap();
    assert_eq!(checkpoint.description.data, fingerprint);
    (folder, checkpoint, files)
}

fn bytes() -> Vec<u8> {
    (0..1_000_000u32).map(|i| ((i * 31) >> 3) as u8).collect()
}

#[test]
fn values_of_another_checkpoint_are_refused() {
    let (_folder, checkpoints) = saved(&[1, 2]);
    fs::copy(checkpoints.path(1).join(STATES), checkpoints.path(2).join(STATES)).unwrap();
    let error = Checkpoint::open(&checkpoints.path(2)).unwrap_err().to_string();
    assert!(error.contains("its checksums differ from the checksums in `checkpoint.json`"), "{error}");
}

/// A checkpoint that was written earlier must be readable, and a new one must have the same bytes, so this test detects a change of the
/// checksums' definition. UPDATE_EXPECT=1 writes the file anew.
#[test]
fn a_checkpoint_is_byte_for_byte_as_it_was() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/checksums/checkpoint");
    let (_folder, checkpoints) = saved(&[1]);
    let names = [DESCRIPTION, STATES];
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::create_dir_all(&golden).unwrap();
        for name in names {
            fs::copy(checkpoints.path(1).join(name), golden.join(name)).unwrap();
        }
    }
    assert_eq!(Checkpoint::open(&golden).unwrap().load(&module()).unwrap(), values(1));
    for name in names {
        let [new, old] = [checkpoints.path(1), golden.clone()].map(|path| fs::read(path.join(name)).unwrap());
        assert!(new == old, "{name}: {}", String::from_utf8_lossy(&new));
    }
}

/// A checkpoint as the program wrote it before there were checksums.
#[test]
fn a_checkpoint_of_version_1_is_read() {
    let (_folder, checkpoints) = saved(&[1]);
    let states = checkpoints.path(1).join(STATES);
    let bytes = fs::read(&states).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    let (from, to) = (header.find("\"trainyard.xxh3\"").unwrap(), header.find("}\"}").unwrap() + 2);
    let old = format!("{}{}", &header[..from].trim_end_matches(','), &header[to..]).replace("{,", "{");
    fs::write(&states, [&(old.len() as u64).to_le_bytes(), old.as_bytes(), &bytes[8 + length..]].concat())
        .unwrap();
    let path = checkpoints.path(1).join(DESCRIPTION);
    let document = Document::of_bytes(&fs::read(&path).unwrap()).unwrap();
    let mut text = serde_json::to_value(&document.description).unwrap();
    text["format"] = 1.into();
    text["parameters"] = "0123456789abcdef".into();
    fs::write(&path, text.to_string()).unwrap();
    let checkpoint = checkpoints.latest().unwrap().checkpoint.unwrap();
    assert_eq!(checkpoint.load(&module()).unwrap(), values(1));
    assert_eq!(checkpoint.description.data.rule, HashRule::SamplesOfFormat1);
}

#[test]
fn other_data_is_refused_with_both_sizes() {
    let told = |refused: Result<(), CheckpointError>| ir::Diagnostic::from(refused.unwrap_err()).to_string();
    for rule in RULES {
        let (_folder, checkpoint, files) = of_data(b"the data", rule);
        let then = checkpoint.description.data.hash.clone();
        fs::write(files.train.as_ref().unwrap(), "other data").unwrap();
        let error = told(checkpoint.check_data_size(&files));
        assert!(error.contains(&format!("8 bytes (hash {then}); this run has 10 bytes\n")), "{error}");
        let error = told(checkpoint.check_data_size(&DataFiles::default()));
        assert!(error.contains("this run has 0 bytes\n"), "{error}");
        fs::write(files.train.as_ref().unwrap(), "The data").unwrap();
        checkpoint.check_data_size(&files).unwrap();
        let error = checkpoint.check_data(&files).unwrap_err().to_string();
        assert!(error.contains("this run has 8 bytes (hash "), "{error}");
    }
}

#[test]
fn made_up_data_is_compared_with_made_up_data() {
    let (folder, mut checkpoint, files) = of_data(b"the data", HashRule::Whole);
    checkpoint.description.data = DataFingerprint::synthetic();
    checkpoint.check_data(&DataFiles::default()).unwrap();
    // An input's file is data too, but the rule of format 1 leaves it out.
    let inputs = [("x".to_owned(), folder.path().join("data.bin"))].into();
    assert!(checkpoint.check_data(&DataFiles { inputs, ..DataFiles::default() }).is_err());
    assert!(checkpoint.check_data(&files).is_err());
}

#[test]
fn a_file_whose_middle_was_replaced_is_other_data() {
    let (_folder, checkpoint, files) = of_data(&bytes(), HashRule::Whole);
    checkpoint.check_data(&files).unwrap();
    let mut other = bytes();
    other[30_000..970_000].iter_mut().for_each(|byte| *byte = !*byte);
    fs::write(files.train.as_ref().unwrap(), other).unwrap();
    let error = checkpoint.check_data(&files).unwrap_err().to_string();
    assert!(error.contains("belongs to a run with other data: 1000000 bytes"), "{error}");
}

#[test]
fn a_copy_of_another_name_and_time_is_the_same_data() {
    for rule in RULES {
        let (folder, checkpoint, files) = of_data(&bytes(), rule);
        let copy = folder.path().join("copy.txt");
        fs::write(&copy, bytes()).unwrap();
        fs::File::options().write(true).open(&copy).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        let copied = DataFiles { train: Some(copy), ..DataFiles::default() };
        let mut now = checkpoint.check_data(&copied).unwrap();
        // Later checkpoints have the fingerprint of all bytes, even if the first one had that of samples.
        assert!(now.wait().unwrap().is_of_same_data(&files.fingerprint(None).unwrap()));
    }
}
