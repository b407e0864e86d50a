"""What is told beside the job."""

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
def test_volumes(volume: str, source: dict[str, Any], sub_path: dict[str, str]) -> None:
    """Where several datasets may lie, each has a folder of its own."""
    settings = RenderSettings(volume=volume)
    assert settings.volume_of("pets") == source
    assert settings.sub_path_of("pets") == sub_path


@pytest.mark.parametrize("service", ["torchdata-remote:8080", "data.ml.svc:1", "10.0.0.1:65535", "[fd00::1]:8080"])
def test_services(service: str) -> None:
    """Names and addresses, with a port."""
    assert RenderSettings(service=service).service == service


@pytest.mark.parametrize(
    ("setting", "came"),
    [
        *(
            ("service", came)
            for came in ("host", "host:0", "host:65536", ":80", "http://host:80", "host:80/x", "a b:1")
        ),
        *(("volume", came) for came in ("", "nfs", "emptyDir:x", "hostPath:", "hostPath:data", "hostPath:/", "pvc:")),
        *(("volume", came) for came in ("hostPath:/a/../b", "hostPath:///", "pvc:A", "pvc:-a")),
        *(("image", came) for came in ("", "a b", "a\n")),
        *(("token_secret", came) for came in ("", "Token", "a_b")),
    ],
)
def test_what_is_none_of_these_is_refused(setting: str, came: str) -> None:
    """The error names the setting and what came."""
    with pytest.raises(JobError) as caught:
        RenderSettings(**{setting: came})
    assert str(caught.value).startswith(f"{setting.replace('_', ' ')}: came {came!r}, expected ")
