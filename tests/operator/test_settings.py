import pytest

from nllb_operator.settings import OperatorSettings, SettingsError


def test_without_variables_every_setting_has_its_default() -> None:
    assert OperatorSettings.from_env({"PATH": "/bin"}) == OperatorSettings()


def test_each_type_is_read() -> None:
    settings = OperatorSettings.from_env(
        {
            "NLLB_OPERATOR_NAMESPACES": "a, b,",
            "NLLB_OPERATOR_ALLOW_FILE_URIS": "True",
            "NLLB_OPERATOR_RESYNC_SECONDS": "2.5",
            "NLLB_OPERATOR_WORKERS": "8",
            "NLLB_OPERATOR_HEALTH_HOST": "::1",
        }
    )

    assert settings.namespaces == ("a", "b")
    assert settings.allow_file_uris is True
    assert (settings.resync_seconds, settings.workers, settings.health_host) == (2.5, 8, "::1")


@pytest.mark.parametrize(
    ("variable", "value", "advice"),
    [
        ("NLLB_OPERATOR_WORKERS", "many", "write a number"),
        ("NLLB_OPERATOR_WORKERS", "1.5", "write a number"),
        ("NLLB_OPERATOR_RESYNC_SECONDS", "-1", "at least 0"),
        ("NLLB_OPERATOR_RESYNC_SECONDS", "inf", "at least 0"),
        ("NLLB_OPERATOR_ALLOW_FILE_URIS", "maybe", "write true or false"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_advice(variable: str, value: str, advice: str) -> None:
    with pytest.raises(SettingsError, match=advice) as error:
        OperatorSettings.from_env({variable: value})

    assert variable in str(error.value)
