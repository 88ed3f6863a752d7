"""One tiny checkpoint for all tests of the model, loaded anew where a test changes it."""

import pytest
import torch
from nllb_models import load
from tiny_configs import TinyConfig, reference, save


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny():
    return TinyConfig(
        seed=7, encoder_layers=2, decoder_layers=2, d_model=64, heads=(2, 4), ffn=(96, 64), vocab=203,
        tied=True, layout="single", max_positions=600,
    )  # fmt: skip


@pytest.fixture(scope="session")
def folder(tiny, tmp_path_factory):
    return save(reference(tiny), tiny, tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def model(tiny, folder):
    return load(folder, tiny, max_batch=8)
