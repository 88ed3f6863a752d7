"""The gate: every damage to a good adapter is refused for its own reason, and named."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gate_cases import CONFIG, MAX_RANK, SHAPES, read, reason
from hypothesis import given, settings
from hypothesis import strategies as st
from lora_adapters import small_adapter, tensors_of, write_adapter
from safetensors.torch import save_file

from nllb_engine.errors import AdapterRejected

KEY = "base_model.model.model.decoder.layers.1.encoder_attn.v_proj"
A, B = f"{KEY}.lora_A.weight", f"{KEY}.lora_B.weight"


def test_a_good_adapter_passes_and_says_what_it_holds(tmp_path: Path) -> None:
    content = read(small_adapter(tmp_path / "good", 1))
    assert content.rank == 4
    assert [module.path for module in content.modules] == [
        path for path in SHAPES if path.endswith(("q_proj", "v_proj"))
    ]
    assert {module.scaling for module in content.modules} == {2.0}


def test_names_without_pefts_prefix_are_read_too(tmp_path: Path) -> None:
    folder = small_adapter(tmp_path / "good", 1)
    tensors = {name.removeprefix("base_model.model."): one for name, one in tensors_of(folder).items()}
    assert len(read(write_adapter(tmp_path / "bare", CONFIG, tensors)).modules) == 12


Tensors = dict[str, torch.Tensor]


def put(name: str, tensor: torch.Tensor) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: tensor})


TENSORS: list[tuple[str, Callable[[Tensors], object]]] = [
    ("UnpairedTensor", lambda tensors: tensors.pop(A)),
    ("UnpairedTensor", lambda tensors: tensors.pop(B)),
    ("MissingTensor", lambda tensors: (tensors.pop(A), tensors.pop(B))),
    ("UnmatchedTensor", put("base_model.model.lm_head.weight", torch.ones(2, 2))),
    ("UnmatchedTensor", put(f"{KEY}.lora_magnitude_vector", torch.ones(32))),
    ("UnmatchedTensor", put("base_model.model.model.shared.lora_embedding_A", torch.ones(4, 97))),
    ("UnmatchedTensor", put(A.replace("layers.1", "layers.9"), torch.ones(4, 32))),
    ("DuplicateTensor", put(A.removeprefix("base_model.model."), torch.ones(4, 32))),
    ("ShapeMismatch", put(A, torch.ones(32, 4))),
    ("ShapeMismatch", put(A, torch.ones(3, 32))),
    ("ShapeMismatch", put(B, torch.ones(33, 4))),
    ("ShapeMismatch", put(B, torch.ones(32, 4, 1))),
    ("ShapeMismatch", put(B, torch.ones(0, 4))),
    ("ShapeMismatch", put(B, torch.tensor(1.0))),
    ("UnsupportedDtype", put(B, torch.ones(32, 4, dtype=torch.float64))),
    ("UnsupportedDtype", put(B, torch.ones(32, 4, dtype=torch.int8))),
    ("NotFinite", put(B, torch.full((32, 4), torch.nan))),
    ("NotFinite", put(B, torch.ones(32, 4).index_fill(0, torch.tensor(7), -torch.inf))),
    ("NotFinite", put(B, torch.full((32, 4), torch.inf, dtype=torch.bfloat16))),
    ("NotFinite", put(B, torch.full((32, 4), torch.nan, dtype=torch.float16))),
    ("ValueTooLarge", put(B, torch.full((32, 4), -1e30))),
    ("ValueTooLarge", put(B, torch.full((32, 4), 1e30, dtype=torch.bfloat16))),
    ("NoEffect", lambda t: t.update({k: torch.zeros_like(v) for k, v in t.items() if "lora_B" in k})),
    ("NoEffect", lambda t: t.update({k: torch.zeros_like(v) for k, v in t.items() if "lora_A" in k})),
]


@pytest.mark.parametrize(("wanted", "damage"), TENSORS)
def test_tensors_are_refused_by_name(
    wanted: str, damage: Callable[[Tensors], object], tmp_path: Path
) -> None:
    tensors = tensors_of(small_adapter(tmp_path / "good", 1))
    damage(tensors)
    assert reason(write_adapter(tmp_path / "bad", CONFIG, tensors)) == wanted


def test_one_negative_zero_is_no_effect_and_one_small_value_is(tmp_path: Path) -> None:
    tensors = tensors_of(small_adapter(tmp_path / "good", 1))
    tensors |= {name: -torch.zeros_like(one) for name, one in tensors.items() if "lora_B" in name}
    assert reason(write_adapter(tmp_path / "zero", CONFIG, tensors)) == "NoEffect"
    tensors[B] = torch.zeros(32, 4).index_fill(0, torch.tensor(3), 1e-30)
    assert read(write_adapter(tmp_path / "small", CONFIG, tensors)).rank == 4


Header = dict[str, Any]


def rewrite(folder: Path, change: Callable[[Header, bytearray], object], tail: bytes = b"") -> Path:
    """Take the weights apart, change header and data, put them together again."""
    path = folder / "adapter_model.safetensors"
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8 : 8 + length]), bytearray(raw[8 + length :])
    change(header, data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data + tail)
    return folder


def shift(header: Header, by: int) -> None:
    first = min(
        (one for name, one in header.items() if name != "__metadata__"), key=lambda e: e["data_offsets"]
    )
    first["data_offsets"] = [offset + by for offset in first["data_offsets"]]


HEADERS: list[tuple[str, Callable[[Header, bytearray], object]]] = [
    ("ByteRanges", lambda header, data: data.extend(b"tail")),
    ("ByteRanges", lambda header, data: data.pop()),
    ("ByteRanges", lambda header, data: shift(header, 4)),
    ("ByteRanges", lambda header, data: header[A].update(data_offsets=[0, 4])),
    ("ByteRanges", lambda header, data: header[A].update(data_offsets=header[B]["data_offsets"])),
    ("ByteRanges", lambda header, data: header[A].update(shape=[4, 31])),
    ("BadHeader", lambda header, data: header[A].update(data_offsets=[-512, 0])),
    ("BadHeader", lambda header, data: header[A].update(data_offsets=[0, 2**63])),
    ("BadHeader", lambda header, data: header[A].update(shape=[4.0, 32])),
    ("BadHeader", lambda header, data: header[A].update(shape="4,32")),
    ("BadHeader", lambda header, data: header[A].update(extra=1)),
    ("BadHeader", lambda header, data: header.update({A: 5})),
    ("UnsupportedDtype", lambda header, data: header[A].update(dtype="F8_E4M3")),
    ("TooManyTensors", lambda header, data: header.update({str(i): {} for i in range(4000)})),
]


@pytest.mark.parametrize(("wanted", "change"), HEADERS)
def test_headers_are_refused_by_name(
    wanted: str, change: Callable[[Header, bytearray], object], tmp_path: Path
) -> None:
    assert reason(rewrite(small_adapter(tmp_path / "bad", 1), change)) == wanted


@pytest.mark.parametrize(
    ("wanted", "raw"),
    [
        ("Truncated", b""),
        ("Truncated", b"\x02\0\0"),
        ("Truncated", struct.pack("<Q", 2**63)),
        ("Truncated", struct.pack("<Q", 100) + b"{}"),
        ("BadJson", struct.pack("<Q", 2) + b"[]"),
        ("BadJson", struct.pack("<Q", 1000) + b"[" * 1000),
        ("DuplicateKey", struct.pack("<Q", 15) + b'{"a":1,"a":1}  '),
        ("BadJson", struct.pack("<Q", 9) + b'{"a":NaN}'),
        ("MissingTensor", struct.pack("<Q", 2) + b"{}"),
    ],
)
def test_files_that_are_no_safetensors_are_refused(wanted: str, raw: bytes, tmp_path: Path) -> None:
    folder = small_adapter(tmp_path / "bad", 1)
    (folder / "adapter_model.safetensors").write_bytes(raw)
    assert reason(folder) == wanted


def test_a_file_larger_than_its_modules_can_need_is_not_read(tmp_path: Path) -> None:
    folder = small_adapter(tmp_path / "bad", 1)
    with open(folder / "adapter_model.safetensors", "ab") as file:
        file.truncate(1 << 30)
    assert reason(folder) == "WeightsTooLarge"


def test_a_header_of_more_than_a_mebibyte_is_not_read(tmp_path: Path) -> None:
    tensors = tensors_of(small_adapter(tmp_path / "good", 1))
    folder = write_adapter(tmp_path / "bad", CONFIG, {name: one.bfloat16() for name, one in tensors.items()})
    rewrite(folder, lambda header, data: header.update(__metadata__={"x": "y" * (1 << 20)}))
    assert reason(folder) == "HeaderTooLarge"


def test_missing_files_and_pickles_are_refused_by_name(tmp_path: Path) -> None:
    folder = small_adapter(tmp_path / "bad", 1)
    weights = folder / "adapter_model.safetensors"
    torch.save({"a": torch.ones(1)}, folder / "adapter_model.bin")
    assert read(folder).rank == 4, "a pickle beside the weights is never opened"
    weights.unlink()
    assert reason(folder) == "PickleRefused"
    (folder / "adapter_model.bin").unlink()
    assert reason(folder) == "WeightsMissing"
    (folder / "adapter_config.json").unlink()
    assert reason(folder) == "ConfigMissing"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = small_adapter(tmp_path / "bad", 1)
    weights = folder / "adapter_model.safetensors"
    weights.rename(tmp_path / "elsewhere")
    weights.symlink_to(tmp_path / "elsewhere")
    assert reason(folder) == "FileUnreadable"


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_flipped_bytes_are_refused_with_a_reason_or_still_fit(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the bytes, the gate ends in an adapter of exactly the promised shape or in AdapterRejected."""
    folder = small_adapter(tmp_path_factory.mktemp("flip") / "bad", 1)
    path = folder / data.draw(st.sampled_from(["adapter_model.safetensors", "adapter_config.json"]))
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, min(len(raw) - 1, 4000)))
        raw[position] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(len(raw) - 20, len(raw))) :]
    path.write_bytes(raw)
    try:
        content = read(folder)
    except AdapterRejected as error:
        assert error.reason and error.detail
        return
    for module in content.modules:
        assert (module.b.bits.shape[0], module.a.bits.shape[1]) == SHAPES[module.path]
        assert module.a.bits.shape[0] == module.b.bits.shape[1] <= MAX_RANK


def test_a_mixed_precision_file_with_odd_offsets_is_read(tmp_path: Path) -> None:
    tensors = tensors_of(small_adapter(tmp_path / "good", 1))
    folder = tmp_path / "mixed"
    write_adapter(folder, {**CONFIG, "r": 1}, {})
    narrow = {
        name: one[:1].half() if "lora_A" in name else one[:, :1].bfloat16() for name, one in tensors.items()
    }
    save_file({name: one.contiguous() for name, one in narrow.items()}, folder / "adapter_model.safetensors")
    assert {module.a.dtype + module.b.dtype for module in read(folder).modules} == {"F16BF16"}
