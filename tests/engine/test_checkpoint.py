"""Every file layout of a Hugging Face folder, and the ways one can be damaged."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nllb_engine.checkpoint import WeightReader, open_checkpoint
from nllb_engine.errors import CheckpointError

TENSORS = {
    "model.shared.weight": torch.arange(12, dtype=torch.bfloat16).reshape(4, 3),
    "model.encoder.layer_norm.weight": torch.ones(3),
    "model.decoder.steps": torch.arange(3),
}


def write(folder: Path, layout: str) -> Path:
    names = sorted(TENSORS)
    if layout == "single":
        save_file(TENSORS, folder / "model.safetensors")
    elif layout == "base-model":
        short = {name.removeprefix("model."): one for name, one in TENSORS.items()}
        save_file(short, folder / "model.safetensors")
    elif layout == "bin":
        torch.save(TENSORS, folder / "pytorch_model.bin")
    elif layout == "old-bin":
        torch.save(TENSORS, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    else:
        stem, suffix, store = {
            "sharded": ("model", "safetensors", save_file),
            "sharded-bin": ("pytorch_model", "bin", torch.save),
        }[layout]
        for index, name in enumerate(names):
            store({name: TENSORS[name]}, folder / f"{stem}-{index}.{suffix}")
        weight_map = {name: f"{stem}-{index}.{suffix}" for index, name in enumerate(names)}
        (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("layout", ["single", "sharded", "bin", "old-bin", "sharded-bin", "base-model"])
def test_every_layout_gives_the_same_tensors(tmp_path, layout):
    store = open_checkpoint(write(tmp_path, layout))
    assert sorted(store.names()) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert store.dtype(name) == tensor.dtype
        assert store.shape(name) == tuple(tensor.shape)
        assert torch.equal(store.tensor(name), tensor)


def test_a_missing_tensor_is_named(tmp_path):
    for layout in ("single", "bin"):
        store = open_checkpoint(write(tmp_path, layout))
        for call in (store.tensor, store.shape, store.dtype):
            with pytest.raises(CheckpointError, match=r"model\.absent is missing"):
                call("model.absent")
        (tmp_path / "model.safetensors").unlink(missing_ok=True)


def test_a_read_tensor_is_a_copy_in_the_asked_dtype(tmp_path):
    store = open_checkpoint(write(tmp_path, "single"))
    read = WeightReader(store, torch.device("cpu"), torch.float32).read("model.shared.weight", (4, 3))
    assert read.dtype == torch.float32
    read.zero_()
    assert store.tensor("model.shared.weight")[0, 1] == 1


def test_wrong_shapes_and_dtypes_are_refused(tmp_path):
    reader = WeightReader(open_checkpoint(write(tmp_path, "single")), torch.device("cpu"), torch.float32)
    with pytest.raises(CheckpointError, match=r"shape \[4, 3\].*\[4, 5\]"):
        reader.read("model.shared.weight", (4, 5))
    with pytest.raises(CheckpointError, match="int64"):
        reader.read("model.decoder.steps", (3,))


def test_a_folder_without_weights_says_what_is_needed(tmp_path):
    with pytest.raises(CheckpointError, match=r"model\.safetensors or pytorch_model\.bin"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="is not a folder"):
        open_checkpoint(tmp_path / "absent")


def test_a_truncated_file_is_refused(tmp_path):
    for layout, name in (("single", "model.safetensors"), ("bin", "pytorch_model.bin")):
        path = write(tmp_path, layout) / name
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(CheckpointError, match=name):
            open_checkpoint(tmp_path)
        path.unlink()


def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match="not a readable file of plain tensors"):
        open_checkpoint(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_bin_that_holds_no_dictionary_is_refused(tmp_path):
    torch.save([torch.ones(1)], tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="list, not a dictionary"):
        open_checkpoint(tmp_path)


def test_an_index_with_missing_or_escaping_shards_is_refused(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "absent.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"absent\.safetensors is missing"):
        open_checkpoint(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(CheckpointError, match="not a plain file name"):
        open_checkpoint(tmp_path)
    index.write_text(json.dumps({}))
    with pytest.raises(CheckpointError, match="weight_map"):
        open_checkpoint(tmp_path)
