"""Settings come from the environment once, and every mistake is named."""

from pathlib import Path

import pytest

from nllb_server.settings import ServerSettings, SettingsError, folder_of

MODEL = {"NLLB_MODEL_URI": "pvc://models/tiny"}


def test_absent_settings_have_defaults_and_the_pod_is_named_after_its_host() -> None:
    settings = ServerSettings.from_env(MODEL)
    assert (settings.http_port, settings.control_port, settings.device) == (8000, 8001, "auto")
    assert settings.pod_name


def test_settings_are_read_with_their_types() -> None:
    settings = ServerSettings.from_env(
        {
            **MODEL,
            "NLLB_MAX_BATCH": "4",
            "NLLB_DRAIN_SECONDS": "1.5",
            "NLLB_WANTED_FILE": "/x",
            "NLLB_FLEET": "f",
        }
    )
    assert (settings.max_batch, settings.drain_seconds) == (4, 1.5)
    assert (settings.wanted_file, settings.fleet) == (Path("/x"), "f")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "NLLB_MODEL_URI is not set"),
        ({**MODEL, "NLLB_MAX_BATCH": "0"}, "NLLB_MAX_BATCH is 0; it must be from 1 to 4096"),
        ({**MODEL, "NLLB_MAX_BATCH": "many"}, "NLLB_MAX_BATCH is 'many'; it must be a number"),
        ({**MODEL, "NLLB_DRAIN_SECONDS": "nan"}, "NLLB_DRAIN_SECONDS is nan"),
        ({**MODEL, "NLLB_DEVICE": "tpu"}, "use one of auto, cuda, cpu"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_with_what_fits(env: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ServerSettings.from_env(env)


def test_variables_that_kubernetes_adds_for_a_service_are_left_alone() -> None:
    ServerSettings.from_env({**MODEL, "NLLB_SERVICE_HOST": "10.0.0.1", "NLLB_PORT_80_TCP": "tcp://10.0.0.1:80"})


def test_a_claim_is_found_below_the_volumes_folder() -> None:
    assert folder_of("pvc://models/a/b", Path("/volumes")) == Path("/volumes/models/a/b")
    assert folder_of("file:///srv/a", Path("/volumes")) == Path("/srv/a")


@pytest.mark.parametrize(
    "uri", ["models/a", "pvc://Models/a", "pvc://models/../other", "file://a", "s3://b/a", ""]
)
def test_an_address_that_is_not_understood_says_which_forms_are(uri: str) -> None:
    with pytest.raises(SettingsError, match=r"use pvc://|not allowed"):
        folder_of(uri, Path("/volumes"))
