"""Settings beside the job."""

from __future__ import annotations

from typing import Any

import pytest

from torchdata_remote.errors import JobError
from torchdata_remote.service.kubernetes import RenderSettings


@pytest.mark.parametrize(
    ("volume", "source", "sub_path"),
    [
        ("emptyDir", {"emptyDir": {}}, {}),
        ("hostPath:/mnt/data/", {"hostPath": {"path": "/mnt/data/pets", "type": "DirectoryOrCreate"}}, {}),
        ("pvc:scratch", {"persistentVolumeClaim": {"claimName": "scratch"}}, {"subPath": "pets"}),
    ],
)
def test_volumes_of_each_kind(volume: str, source: dict[str, Any], sub_path: dict[str, str]) -> None:
    """On shared volumes each dataset has a folder of its own."""
    settings = RenderSettings(volume=volume)
    assert settings.volume_of("pets") == source
    assert settings.sub_path_of("pets") == sub_path


@pytest.mark.parametrize("service", ["torchdata-remote:8080", "data.ml.svc:1", "10.0.0.1:65535", "[fd00::1]:8080"])
def test_valid_service_addresses(service: str) -> None:
    """Names and addresses, with a port."""
    assert RenderSettings(service=service).service == service


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(
            ("service", value)
            for value in ("host", "host:0", "host:65536", ":80", "http://host:80", "host:80/x", "a b:1")
        ),
        *(("volume", value) for value in ("", "nfs", "emptyDir:x", "hostPath:", "hostPath:data", "hostPath:/", "pvc:")),
        *(("volume", value) for value in ("hostPath:/a/../b", "hostPath:///", "pvc:A", "pvc:-a")),
        *(("image", value) for value in ("", "a b", "a\n")),
        *(("token_secret", value) for value in ("", "Token", "a_b")),
    ],
)
def test_invalid_settings_are_refused(setting: str, value: str) -> None:
    """The error names the setting and its value."""
    with pytest.raises(JobError) as caught:
        RenderSettings(**{setting: value})
    assert str(caught.value).startswith(f"{setting.replace('_', ' ')}: got {value!r}, expected ")
