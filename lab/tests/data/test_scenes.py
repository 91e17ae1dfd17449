"""Photographs at 32 x 32: house numbers, textures, Tiny ImageNet, places."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from data_files import bytes_of, picture, plain, write
from repulse.errors import DataError
from repulse_lab import data


def test_tiny_imagenet_halves_share_no_class(tmp_path):
    (tmp_path / "files").mkdir()
    names = np.array([f"n{i:03d}" for i in range(200)])[::-1]
    images = np.zeros((200, 32, 32, 3), dtype=np.uint8)
    images[:, 0, 0, 0] = np.arange(200)[::-1]
    np.savez(tmp_path / "files/tiny_imagenet_val_32x32.npz", x=images, wnid=names)
    np.savez(tmp_path / "files/dtd_10_classes_32x32.npz", x=images[:7], texture=names[:7])
    repulsion, evaluation = (data.load("tiny-imagenet", part, tmp_path).images for part in ("repulsion", "evaluation"))
    assert sorted(repulsion[:, 0, 0, 0].tolist()) == list(range(100))
    assert sorted(evaluation[:, 0, 0, 0].tolist()) == list(range(100, 200))
    assert data.load("dtd", "ten-classes", tmp_path).images.shape == (7, 3, 32, 32)


@pytest.mark.parametrize("folder", ["svhn", "."])
def test_svhn_calls_ten_zero(tmp_path, folder):
    images = bytes_of(32, 32, 3, 3)
    (tmp_path / folder).mkdir(exist_ok=True)
    savemat(tmp_path / folder / "test_32x32.mat", {"X": images, "y": np.array([[10], [1], [9]], dtype=np.uint8)})
    numbers = data.load("svhn", "test", tmp_path)
    assert numbers.targets.tolist() == [0, 1, 9]
    assert numbers.inputs[2, 1, 5, 6] == images[5, 6, 1, 2]


def test_svhn_crops_call_ten_zero(tmp_path):
    (tmp_path / "files").mkdir()
    images = bytes_of(3, 32, 32, 3)
    np.savez(tmp_path / "files/svhn_crops_32x32.npz", x=images, name=np.array(["10", "1", "9"]))
    crops = data.load("svhn-crops", "all", tmp_path)
    assert crops.targets.tolist() == [0, 1, 9]
    assert crops.inputs[2, 1, 5, 6] == images[2, 5, 6, 1]


def test_sheets_of_pictures_are_cut_row_by_row(tmp_path):
    """Each tile of a sheet has its own colour, and sheets are in the order of their classes."""
    folder = tmp_path / "files/tiny-imagenet-sheets"
    folder.mkdir(parents=True)
    numbers = np.arange(400, dtype=np.uint16).reshape(20, 20).repeat(32, axis=0).repeat(32, axis=1)
    for first, name in ((7, "n02"), (3, "n01")):
        sheet = np.stack([numbers % 256, numbers // 256, np.full_like(numbers, first)], axis=2).astype(np.uint8)
        Image.fromarray(sheet).save(folder / f"{name}.jpg", format="PNG")  # without loss
    train = data.load("tiny-imagenet-100", "train", tmp_path, progress=False)
    assert train.inputs.shape == (800, 3, 32, 32)
    assert train.classes == ("n01", "n02")
    assert train.targets.tolist() == [0] * 400 + [1] * 400
    assert train.inputs[:, 2, 9, 9].tolist() == [3] * 400 + [7] * 400
    tiles = train.inputs[:400, :2].long()
    assert (tiles[:, 0, 0, 0] + 256 * tiles[:, 1, 0, 0]).tolist() == list(range(400))
    assert (tiles.flatten(2).amin(dim=2) == tiles.flatten(2).amax(dim=2)).all()


def test_textures_by_partition_all_and_ten_classes(tmp_path):
    names = [f"class_{i:02d}" for i in range(12)]
    for i, name in enumerate(names):
        picture(tmp_path / f"dtd/images/{name}/{name}_0001.png", plain(10 * i))
        picture(tmp_path / f"dtd/images/{name}/{name}_0002.png", plain(10 * i + 5))
        write(tmp_path, f"dtd/images/{name}/.directory", "not an image")
    write(tmp_path, "dtd/labels/test1.txt", "".join(f"{name}/{name}_0002.png\n" for name in names))
    test = data.load("dtd", "test", tmp_path)
    assert test.inputs[:, 0, 0, 0].tolist() == [10 * i + 5 for i in range(12)]
    assert test.classes == tuple(names)
    assert test.targets.tolist() == list(range(12))
    assert len(data.load("dtd", "all", tmp_path)) == 24
    assert data.load("dtd", "ten-classes", tmp_path).targets.tolist() == [i // 2 for i in range(20)]
    (tmp_path / "files").mkdir()
    np.savez(tmp_path / "files/dtd_10_classes_32x32.npz", x=bytes_of(2, 32, 32, 3), texture=np.array(["b", "a"]))
    assert len(data.load("dtd", "ten-classes", tmp_path)) == 20  # the publisher's
    (tmp_path / "dtd").rename(tmp_path / "elsewhere")
    assert data.load("dtd", "ten-classes", tmp_path).targets.tolist() == [1, 0]


def test_photographs_are_cropped_to_the_middle_and_antialiased(tmp_path):
    stripes = np.zeros((128, 256, 3), dtype=np.uint8)
    stripes[:, 64:192:2] = 200  # finer than a pixel of the result
    stripes[:, :64] = 255  # cut off
    picture(tmp_path / "places365/val_256/Places365_val_00000001.png", stripes)
    picture(tmp_path / "places365/val_256/Places365_val_00000002.png", plain(50))
    places = data.load("places365", "val", tmp_path)
    assert places.inputs.shape == (2, 3, 32, 32)
    assert places.targets is None
    assert (places.inputs[0, :, :, 4:-4].float() - 100).abs().max() <= 2
    assert bool((places.inputs[1] == 50).all())
    write(tmp_path, "places365/places365_val.txt", "Places365_val_00000002.png 7\nPlaces365_val_00000001.png 364\n")
    named = data.load("places365", "val", tmp_path)
    assert named.targets.tolist() == [7, 364]
    assert named.classes == ()
    write(tmp_path, "places365/categories_places365.txt", "/a/airfield 0\n/z/zen_garden 1\n")
    assert data.load("places365", "val", tmp_path).classes == ("/a/airfield", "/z/zen_garden")
    assert bool((named.inputs[0] == 50).all())
    write(tmp_path, "places365/val_256/Places365_val_00000002.png", b"\x89PNG but no more")
    with pytest.raises(DataError, match=r"val_00000002\.png to be a whole image"):
        data.load("places365", "val", tmp_path)


def test_tiny_imagenet_folders(tmp_path):
    names = [f"n{i:08d}" for i in range(200)]
    root = tmp_path / "tiny-imagenet-200"
    lines = []
    for i, name in enumerate(reversed(names)):
        picture(root / f"val/images/val_{i}.png", plain(199 - i, 64, 64))
        lines.append(f"val_{i}.png\t{name}\t0\t0\t62\t62\n")
    write(tmp_path, "tiny-imagenet-200/val/val_annotations.txt", "".join(lines))
    for name in ("n2", "n1"):
        picture(root / f"train/{name}/images/{name}_0.png", plain(9, 64, 64))
    train = data.load("tiny-imagenet", "train", tmp_path)
    assert train.classes == ("n1", "n2")
    assert train.targets.tolist() == [0, 1]
    everything = data.load("tiny-imagenet", "val", tmp_path)
    assert everything.targets.tolist() == list(range(199, -1, -1))
    repulsion, evaluation = (data.load("tiny-imagenet", part, tmp_path) for part in ("repulsion", "evaluation"))
    assert repulsion.classes == tuple(names[:100])
    assert evaluation.classes == tuple(names[100:])
    assert sorted(evaluation.inputs[:, 0, 0, 0].tolist()) == list(range(100, 200))
    picture(root / "val/images/val_0.png", plain(0, 64, 64))
    write(tmp_path, "tiny-imagenet-200/val/val_annotations.txt", lines[0])
    with pytest.raises(DataError, match="of 200 classes, to be halved, but got 1 classes"):
        data.load("tiny-imagenet", "repulsion", tmp_path)
