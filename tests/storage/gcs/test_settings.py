"""Storage options of Google Cloud Storage, in gcsfs's words."""

from __future__ import annotations

from typing import Any

import pytest

from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import UrlError
from torchdata_remote.storage.gcs.settings import GcsSettings, gcs_settings
from torchdata_remote.storage.option_names import require_known_options


def settings_of(**options: Any) -> GcsSettings | None:
    return gcs_settings(StorageOptions(options), 7.0)


def test_options_of_gcsfs_are_translated() -> None:
    """Those without a meaning here, such as the place of new buckets, change nothing."""
    settings = settings_of(
        token="secret", project="p", access="read_only", endpoint_url="http://host:1/", requester_pays=True,
        consistency="md5", cache_timeout=1, default_location="EU", version_aware=False, secure_serialize=True,
    )  # fmt: skip
    assert settings == GcsSettings("http://host:1", "secret", "read_only", "p", True, 7.0)
    assert "secret" not in repr(settings)
    assert settings_of(token=None) == GcsSettings(read_timeout_s=7.0)
    assert settings_of(requester_pays="payer") == GcsSettings(project="payer", requester_pays=True, read_timeout_s=7.0)


@pytest.mark.parametrize(
    "options", [{"session_kwargs": {"trust_env": True}}, {"version_aware": True}, {"token": "cache"}, {"block_size": 5}]
)
def test_an_option_without_a_translation_is_for_gcsfs(options: dict[str, Any]) -> None:
    """Nothing is dropped."""
    assert settings_of(**options) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"token": "browser"}, "gcloud auth application-default login"),
        ({"token": 5}, "must be 'google_default'.*got an int"),
        ({"access": "write"}, "expected one of 'read_only'"),
        ({"consistency": "sha"}, "expected one of 'none'"),
        ({"endpoint_url": "host:80"}, "expected such as 'https://host:port'"),
        ({"endpoint_url": "https://host/path"}, "without a path"),
        ({"endpoint_url": "https://u:secret@host"}, "holds credentials"),
        *(
            ({"endpoint_url": url}, "expected such as")
            for url in ("http://h:x", "http://h:99999", "http://[::1", "http://h?x")
        ),
        ({"token": '{"private_key": "secret"}'}, r"text of a JSON file.*json\.loads"),
        ({"token": " "}, "is empty"),
        ({"requester_pays": [1]}, "'requester_pays'. must be True or False"),
        ({"requester_pays": "my project\n"}, "has characters that no project has"),
        ({"project": 5}, "'project'. must be a str, got an int"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(options: dict[str, Any], said: str) -> None:
    """Before any request, without the values of credentials."""
    with pytest.raises(UrlError, match=said) as caught:
        settings_of(**options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", ["http://127.0.0.1:9", "127.0.0.1:9"])
def test_the_emulator_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Without credentials, as by Google's libraries, unless options say otherwise."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", value)
    assert settings_of() == GcsSettings("http://127.0.0.1:9", "anon", read_timeout_s=7.0)
    assert settings_of(token="t") == GcsSettings("http://127.0.0.1:9", "t", read_timeout_s=7.0)
    assert settings_of(endpoint_url="http://b") == GcsSettings("http://b", read_timeout_s=7.0)


@pytest.mark.parametrize(
    ("name", "meant"), [("anon", "token"), ("tokn", "token"), ("host", "endpoint_url"), ("projct", "project")]
)
def test_an_unknown_option_is_an_error_with_the_nearest_name(name: str, meant: str) -> None:
    """Also without gcsfs, and before any request."""
    with pytest.raises(UrlError, match=f"gs://bucket/a: unknown option '{name}'.*did you mean '{meant}'"):
        require_known_options("gs://bucket/a", "gs", StorageOptions({name: "x"}))
