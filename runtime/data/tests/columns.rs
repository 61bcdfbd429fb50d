//! CSV files: the assignment of columns, and refusals with lines and columns.

use std::io::Write;

use super::*;

/// Text in the form of scikit-learn's digits: features first, the label last, no names.
fn digits() -> String {
    (0..6).map(|row| format!("{row},{}.5,{}\n", row * 2, row % 3)).collect()
}

fn unshuffled() -> LoaderOptions {
    LoaderOptions { shuffle: false, ..options() }
}

fn of_columns(inputs: &[(&str, &str)]) -> LoaderOptions {
    let inputs: Vec<(&str, Source)> =
        inputs.iter().map(|(name, text)| (*name, Source::parse(text))).collect();
    LoaderOptions { inputs: overrides(&inputs), ..unshuffled() }
}

fn decisions(loader: &Loader) -> Vec<String> {
    loader.decisions().iter().map(ToString::to_string).collect()
}

#[test]
fn without_names_the_last_column_is_the_label_and_the_rest_the_input() {
    let files = Files::new();
    let loader = Loader::new(&classifier(3, None), &files.write("d.csv", digits()), &unshuffled()).unwrap();
    assert_eq!(decisions(&loader), ["input `x`: columns 1-2 (the columns that no other input takes)"]);
    assert!(
        loader.notes()[0].contains(
            "taken from the last column, 3, `x` from 1-2; --input labels=1 takes them from the first"
        )
    );
    let batch = loader.global_batch(1);
    assert_eq!(batch.tensors["x"].to_f64s(), [3.0, 6.5, 4.0, 8.5, 5.0, 10.5]);
    assert_eq!(integers(&batch, "labels"), [0, 1, 2]);
}

#[test]
fn a_gzipped_file_gives_the_same_as_the_plain_one() {
    let files = Files::new();
    let plain = files.write("d.csv", digits());
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(digits().as_bytes()).unwrap();
    let packed = gzip.finish().unwrap();
    let zipped = files.write("d.csv.gz", &packed);
    let batch = |data| Loader::new(&classifier(3, None), data, &options()).unwrap().global_batch(0);
    assert_eq!(batch(&plain), batch(&zipped));
    let cut = files.write("cut.csv.gz", &packed[..packed.len() - 9]);
    let error = refusal(&classifier(3, None), &cut, &options());
    assert!(error.contains("cut.csv.gz` is damaged") && error.contains("cannot be unpacked"), "{error}");
}

#[test]
fn names_in_the_first_line_find_the_labels_and_can_be_chosen() {
    let files = Files::new();
    let data = files.write("d.csv", "id,\"Label\",a,b\r\nrow one,2,3,4\r\nrow two,1,5,6\r\n");
    let spec = classifier(2, None);
    let error = refusal(&spec, &data, &unshuffled());
    assert!(
        error.contains("d.csv` has 4 columns: `x` needs 2 columns, and 3 columns are left beside the labels in 2 (`Label`)"),
        "{error}"
    );
    for chosen in ["a,b", "a-b", "3-4", "3,b"] {
        let loader = Loader::new(&spec, &data, &of_columns(&[("x", chosen)])).unwrap();
        let batch = loader.global_batch(0);
        assert_eq!(batch.tensors["x"].to_f64s(), [3.0, 4.0, 5.0, 6.0], "{chosen}");
        assert_eq!(integers(&batch, "labels"), [2, 1]);
        assert!(loader.notes().is_empty());
    }
    let loader = Loader::new(&spec, &data, &of_columns(&[("x", "b,a"), ("labels", "a")])).unwrap();
    assert_eq!(loader.global_batch(0).tensors["x"].to_f64s(), [4.0, 3.0, 6.0, 5.0]);
    assert_eq!(integers(&loader.global_batch(0), "labels"), [3, 5]);
}

#[test]
fn a_column_of_an_inputs_name_feeds_it_and_several_inputs_are_told_apart() {
    let files = Files::new();
    let mut spec = classifier(1, None);
    spec.inputs.push(input("scale", DType::F32, &[1, 1]));
    let data = files.write("d.csv", "scale,a,b,y\n9,1,2,3\n");
    let batch = Loader::new(&spec, &data, &unshuffled()).unwrap().global_batch(0);
    assert_eq!((batch.tensors["scale"].to_f64s(), batch.tensors["x"].to_f64s()), (vec![9.0], vec![1.0, 2.0]));
    spec.inputs[1].name = "factor".to_owned();
    let error = refusal(&spec, &data, &unshuffled());
    assert!(error.contains("`x`, `factor` could each take the columns"), "{error}");
    Loader::new(&spec, &data, &of_columns(&[("factor", "1")])).unwrap();
}

#[test]
fn an_image_takes_its_columns_row_by_row() {
    let files = Files::new();
    let mut spec = classifier(1, None);
    spec.inputs[0].dims = vec![1, 1, 2, 2];
    let batch =
        Loader::new(&spec, &files.write("d.tsv", "1\t2\t3\t4\t5\n"), &unshuffled()).unwrap().global_batch(0);
    assert_eq!(batch.tensors["x"].dims, [1, 1, 2, 2]);
    assert_eq!(batch.tensors["x"].to_f64s(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn rows_of_tokens_can_make_their_own_labels() {
    let files = Files::new();
    let shift = LoaderOptions { labels_from: Some(LabelsFrom::Shift), ..unshuffled() };
    let data = files.write("d.csv", "5,6,7\n8,9,10\n");
    let batch = Loader::new(&language_model(2, 3, Some(-100)), &data, &shift).unwrap().global_batch(0);
    assert_eq!(integers(&batch, "labels"), [6, 7, -100, 9, 10, -100]);
}

#[test]
fn an_input_or_the_labels_can_have_a_file_of_columns() {
    let files = Files::new();
    let DataSource::Path(labels) = files.write("labels.csv", "label\n1\n2\n") else { unreachable!() };
    let data = files.arrays("s.safetensors", &[("x", DType::F32, &[2, 2], &[1, 2, 3, 4])]);
    let inputs = overrides(&[("labels", Source::File(labels))]);
    let batch = Loader::new(&classifier(2, None), &data, &LoaderOptions { inputs, ..unshuffled() })
        .unwrap()
        .global_batch(0);
    assert_eq!(integers(&batch, "labels"), [1, 2]);
    let inputs = overrides(&[("labels", Source::parse("x"))]);
    let error = refusal(&classifier(2, None), &data, &LoaderOptions { inputs, ..unshuffled() });
    assert!(error.contains("s.safetensors:x` has dims [2, 2], but `labels` takes [samples, ]"), "{error}");
    let inputs = overrides(&[("labels", Source::Ones)]);
    let error = refusal(&classifier(2, None), &data, &LoaderOptions { inputs, ..unshuffled() });
    assert!(error.contains("labels come from the data, from a file, or from columns of it"), "{error}");
}

#[test]
fn cells_that_are_no_numbers_are_told_with_line_and_column() {
    let files = Files::new();
    let of = |text: &str| refusal(&classifier(1, None), &files.write("d.csv", text), &unshuffled());
    for (text, expected) in [
        ("1,2,3\n1,x,3\n", "line 2: column 2, which feeds `x`, is `x`, which is not a number"),
        ("a,b,y\n1,,3\n", "line 2: column 2 (`b`), which feeds `x`, is empty"),
        ("1,nan,3\n", "line 1: column 2, which feeds `x`, is `nan`, which is not a finite number"),
        ("1,2,3\n1,nan,3\n", "column 2, which feeds `x`, is `nan`, which is not a finite number"),
        ("1,2,3\n-inf,2,3\n", "column 1, which feeds `x`, is `-inf`, which is not a finite number"),
        ("1,2,3\n1,1e999,3\n", "not a finite number"),
        ("1,2,3\n1,1e39,3\n", "column 2, which feeds `x`, is `1e39`, which does not fit f32"),
        ("1,2,3\n1,2,3.5\n", "column 3, which feeds `labels`, is `3.5`, which is not an integer"),
        ("1,2,3\n1,2,99999999999999999999\n", "which does not fit i64"),
        ("1,2,3\n1,2,10\n", "label 10 in sample 1 of"),
        ("1,2,3\n1,2\n", "line 2 has 2 columns, and the first line has 3"),
        ("1,2,3\n\n1,2,3,4\n", "line 3 has 4 columns, and the first line has 3"),
        ("1,2,3\n\"1,2,3\n", "a quote on line 2 is not closed"),
        ("", "it is empty"),
        ("\n\n", "it is empty"),
        ("a,b,y\n", "it has column names and no rows"),
        ("1,2\n", "`x` needs 2 columns, and 1 columns are left beside the labels in 2"),
        ("1;2;3\n4;5;6\n", "its cells are separated by ';'; separate them by commas"),
        ("1\t2\t3\n", "its cells are separated by '\\t'; separate them by commas"),
        (
            "a,b,c\n1,2,3\n",
            "has no column with a usual name for labels (labels, label, target, class, y); its columns are `a`, `b`, `c`; choose a column with --input labels=COLUMN",
        ),
    ] {
        let error = of(text);
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    let float = Loader::new(&classifier(1, None), &files.write("f.csv", "1,2,3.0\n"), &unshuffled()).unwrap();
    assert_eq!(integers(&float.global_batch(0), "labels"), [3]);
}

#[test]
fn columns_that_are_not_there_are_refused() {
    let files = Files::new();
    let data = files.write("d.csv", "a,b,y\n1,2,3\n");
    for (text, expected) in [
        ("a,c", "it has no column `c`; its columns are `a`, `b`, `y`"),
        ("0", "it has no column `0`"),
        ("1-4", "it has no column `1-4`"),
        ("b-a", "the columns `b-a` end before they begin"),
        ("1-3", "`x` needs 2 columns, and 3 columns are chosen for it"),
        ("", "it has no column ``"),
    ] {
        let inputs = overrides(&[("x", Source::Key(text.to_owned()))]);
        let error = refusal(&classifier(1, None), &data, &LoaderOptions { inputs, ..unshuffled() });
        assert!(error.contains(expected) && error.contains("--input x=COLUMNS"), "{text}: {error}");
    }
}
