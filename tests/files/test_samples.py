"""Files and folders as samples: what is found in them, and what is said of those that are wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from own_data import picture, write_images, write_rows, write_tar, write_texts
from repulse import DataError
from repulse.files import Columns, read_samples
from repulse.files.batches import targets_of
from repulse.files.samples import need, open_image


def test_a_folder_of_class_folders(tmp_path):
    found = read_samples(write_images(tmp_path / "pets", 3))
    assert (found.kind, found.key_name, len(found)) == ("images", "path", 6)
    assert list(found.keys) == [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(3)]
    assert found.labels.tolist() == ["cat"] * 3 + ["dog"] * 3
    part = read_samples(tmp_path / "pets", part="dog")
    assert list(part.keys) == [f"dog/{i}.png" for i in range(3)]


def test_a_folder_with_images_beside_folders_has_no_labels(tmp_path):
    folder = write_images(tmp_path, 1)
    (folder / "stray.png").write_bytes(picture(0))
    assert read_samples(folder).labels is None


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv"])
def test_a_table_of_numbers(name, tmp_path):
    found = read_samples(write_rows(tmp_path / name, 5))
    assert found.kind == "rows"
    assert found.values.shape == (5, 4)
    assert found.columns == Columns(label="label", key="id", features=("a", "b", "c", "d"))
    assert (found.key_name, found.keys.to_pylist()) == ("id", [f"k{i}" for i in range(5)])


def test_features_stay_in_the_order_of_the_fit(tmp_path):
    path = write_rows(tmp_path / "rows.parquet", 5)
    before = read_samples(path)
    turned = parquet.read_table(path).select(["d", "label", "c", "b", "id", "a"])
    parquet.write_table(turned, tmp_path / "turned.parquet")
    after = read_samples(tmp_path / "turned.parquet", before.columns)
    assert np.array_equal(before.values, after.values)


def test_texts_are_found_by_name_and_by_type(tmp_path):
    found = read_samples(write_texts(tmp_path / "a.csv", 6))
    assert (found.kind, found.columns.text, found.columns.label) == ("texts", "text", "label")
    (tmp_path / "b.tsv").write_text("words\tlabel\nred\t1\nblue\t0\n")
    found = read_samples(tmp_path / "b.tsv")
    assert (found.kind, found.values, found.labels.tolist()) == ("texts", ["red", "blue"], [1, 0])
    assert (found.key_name, list(found.keys)) == ("row", [0, 1])


def test_paths_are_relative_to_the_table_and_images_may_be_in_it(tmp_path):
    write_images(tmp_path, 1)
    (tmp_path / "list.csv").write_text("path,label\ncat/0.png,cat\ndog/0.png,dog\n")
    found = read_samples(tmp_path / "list.csv")
    assert (found.kind, list(found.keys)) == ("images", ["cat/0.png", "dog/0.png"])
    inside = [{"bytes": picture(100), "path": "b"}, {"bytes": picture(0), "path": "a"}]
    parquet.write_table(pa.table({"image": inside}), tmp_path / "inside.parquet")
    held = read_samples(tmp_path / "inside.parquet")
    for one, other in zip(found.values, reversed(held.values), strict=True):
        assert open_image(one).tobytes() == open_image(other).tobytes()
    assert held.keys == ["b", "a"]


def test_a_tar_of_images(tmp_path):
    found = read_samples(write_tar(tmp_path / "shard.tar", 4))
    assert found.keys == ["000.png", "001.png", "002.png", "003.png"]
    assert found.labels.tolist() == [0, 1, 0, 1]
    assert found.values[2].read() == picture(2)


def test_arrays(tmp_path):
    np.savez(tmp_path / "ready.npz", features=np.ones((3, 2)), labels=[1, 0, 1])
    found = read_samples(tmp_path / "ready.npz")
    assert (found.kind, found.values.dtype, found.labels.tolist()) == ("rows", np.float32, [1, 0, 1])
    lists = pa.table({"embedding": [[1.0, 2.0], [3.0, 4.0]], "key": [7, 8]})
    parquet.write_table(lists, tmp_path / "lists.parquet")
    found = read_samples(tmp_path / "lists.parquet")
    assert found.values.tolist() == [[1, 2], [3, 4]]
    assert found.keys.to_pylist() == [7, 8]


def test_some_samples(tmp_path):
    found = read_samples(write_rows(tmp_path / "rows.csv", 5))
    some = found.some([3, 0])
    assert np.array_equal(some.values, found.values[[3, 0]])
    assert [str(key) for key in some.keys] == ["k3", "k0"]


def broken(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("make", "columns", "kind", "said"),
    [
        (lambda t: t / "no.csv", None, None, "which does not exist"),
        (lambda t: broken(t, "a.docx", b"x"), None, None, "Expected `DATA` to be a folder of images, a CSV"),
        (lambda t: t, None, None, "with images, or folders of images, in it, but got none"),
        (lambda t: broken(t, "a.parquet", b"PAR1"), None, None, "to be a whole table"),
        (lambda t: broken(t, "a.tar", b"no tar" * 99), None, None, "a whole tar that is not compressed"),
        (lambda t: broken(t, "a.npz", b"PK"), None, None, "an .npz of arrays"),
        (lambda t: broken(t, "a.csv", b"text,label\n"), None, None, "at least one sample, but got none"),
        (lambda t: broken(t, "a.csv", b"u,v\nq,r\n"), None, "texts", "Expected `--text` to be the column of a.csv"),
        (lambda t: broken(t, "a.csv", b"u,v\nq,r\n"), None, "images", "Expected `--path` to be the column of a.csv"),
        (lambda t: broken(t, "a.csv", b"u,v\n1,2\n"), Columns(text="w"), None, "got 'w'; the columns u, v."),
        (lambda t: broken(t, "a.csv", b"u,v\n1,2\n,3\n"), None, "rows", "got 1 empty cells, first in row 1."),
        (lambda t: broken(t, "a.csv", b"u,v\nq,r\n"), None, "rows", "numbers, those that the network takes"),
        (lambda t: write_tar(t / "a.tar"), None, "texts", "to be texts, which the network takes, but got images."),
        (lambda t: write_rows(t / "a.csv"), Columns(features=("a", "z")), None, "but got none called 'z'."),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(make, columns, kind, said, tmp_path):
    with pytest.raises(DataError) as caught:
        read_samples(make(tmp_path), columns, kind)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_image_is_named(tmp_path):
    path = broken(tmp_path, "half.png", picture(0)[:40])
    with pytest.raises(DataError, match=r"half\.png` to be a whole image"):
        open_image(path)


@pytest.mark.parametrize(
    ("task", "classes", "labels", "said"),
    [
        ("classification", None, [0.5, 1.5], "say --task regression"),
        ("classification", None, ["a", "b"], "numbers of classes, as in the fit"),
        ("classification", ["a"], ["a", "b"], "among the 1 classes of the fit, but got 'b'."),
        ("regression", None, ["a", "b"], "numbers, for a regression"),
        ("classification", None, None, "a column that --label names, but got no labels."),
    ],
)
def test_labels_that_do_not_fit(task, classes, labels, said, tmp_path):
    samples = read_samples(write_rows(tmp_path / "a.csv", 2))
    samples = type(samples)("rows", samples.values, samples.keys, None if labels is None else np.asarray(labels))
    with pytest.raises(DataError) as caught:
        targets_of(samples, task, classes)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": np.ones(3), "b": np.ones(4)}, r"the arrays of .* to be `features` \(N, d\).* got a \(3,\), b \(4,\)"),
        ({"features": np.array([["x"]])}, r"the arrays of .* to be `features` \(N, d\)"),
        ({"features": np.ones((3, 2)), "labels": np.ones(4)}, "the labels of .* to be 3, one for each row, but got 4"),
        ({"features": np.ones((3, 2)), "keys": np.ones(2)}, "the keys of .* to be 3, one for each row, but got 2"),
    ],
)
def test_arrays_that_are_no_rows_are_refused(arrays, words, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=f"Expected {words}"):
        read_samples(tmp_path / "a.npz")


def test_rows_may_have_keys_and_one_array_needs_no_name(tmp_path):
    np.savez(tmp_path / "a.npz", whatever=np.ones((2, 3)), keys=np.array(["x", "y"]))
    found = read_samples(tmp_path / "a.npz")
    assert (found.key_name, list(found.keys), found.values.shape) == ("key", ["x", "y"], (2, 3))


def test_a_tar_that_is_none_and_one_image_alone(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"no tar")
    with pytest.raises(DataError, match="a whole tar that is not compressed"):
        read_samples(tmp_path / "a.tar")
    (tmp_path / "cat.png").write_bytes(picture(0))
    found = read_samples(tmp_path / "cat.png")
    assert (found.kind, list(found.keys), len(found)) == ("images", ["cat.png"], 1)


def test_a_column_that_holds_no_numbers_is_named(tmp_path):
    parquet.write_table(pa.table({"a": [1.0, 2.0], "b": [[1.0], [2.0, 3.0]]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"Expected the column 'b' of .* to be numbers, as many in each row"):
        read_samples(tmp_path / "a.parquet", Columns(features=("a", "b")))


def test_what_a_package_is_needed_for_is_said():
    with pytest.raises(DataError, match=r"Reading stars needs no_such_package: pip install 'repulse\[files\]'"):
        need("no_such_package", "reading stars", "files")


def test_a_table_without_the_label_names_its_columns(tmp_path):
    path = broken(tmp_path, "a.csv", b"one,two\n1,2\n")
    for label, said in ((None, "no labels"), ("thre", "none called 'thre'")):
        with pytest.raises(DataError, match=f"but got {said} among the columns one, two.$"):
            targets_of(read_samples(path, Columns(label=label)), "classification", None)
