"""Settings of the manifests beside the job: source and storage of its dataset."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Any

from ...errors import JobError

_SERVICE = re.compile(r"(?:[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})")
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_HOST_PATH, _CLAIM = "hostPath:", "pvc:"


@dataclass(frozen=True, kw_only=True)
class RenderSettings:
    """Source and storage of a job's dataset.

    Args:
        service: ``host:port`` of the dataset service, as reachable from pods.
        image: of the container that pulls the dataset; it must contain this package. ``None`` takes the job's own.
        token_secret: name of a Secret whose key ``token`` has the service's token; ``None`` for a service without one.
        volume: ``emptyDir`` (a copy for each pod), ``hostPath:/path`` (shared by the pods of a node, in a folder with
            the dataset's name below that path), or ``pvc:NAME`` (a PersistentVolumeClaim, in such a folder too).

    Raises:
        JobError: for an invalid value.

    Example:
        >>> RenderSettings(volume="pvc:scratch").volume_of("photos")
        {'persistentVolumeClaim': {'claimName': 'scratch'}}
    """

    service: str = "torchdata-remote:8080"
    image: str | None = None
    token_secret: str | None = None
    volume: str = "emptyDir"

    def __post_init__(self) -> None:
        match = _SERVICE.fullmatch(self.service)
        if match is None or not 1 <= int(match[2]) <= 65_535:
            raise JobError(f"service: got {self.service!r}, expected host:port, such as torchdata-remote:8080.")
        if self.image is not None and re.fullmatch(r"[!-~]+", self.image) is None:
            raise JobError(f"image: got {self.image!r}, expected the name of an image.")
        if self.token_secret is not None and _OBJECT_NAME.fullmatch(self.token_secret) is None:
            raise JobError(f"token secret: got {self.token_secret!r}, expected the name of a Secret.")
        claim, path = self._after(_CLAIM), self._after(_HOST_PATH)
        if claim is not None:
            good = _OBJECT_NAME.fullmatch(claim) is not None
        elif path is not None:  # not the root of the node's file system
            good = path.startswith("/") and ".." not in path.split("/") and posixpath.normpath(path).strip("/") != ""
        else:
            good = self.volume == "emptyDir"
        if not good:
            raise JobError(f"volume: got {self.volume!r}, expected emptyDir, hostPath:/path or pvc:NAME.")

    def _after(self, prefix: str) -> str | None:
        return self.volume.removeprefix(prefix) if self.volume.startswith(prefix) else None

    def volume_of(self, dataset: str) -> dict[str, Any]:
        """Return the source of a pod's volume in Kubernetes' terms."""
        claim, path = self._after(_CLAIM), self._after(_HOST_PATH)
        if claim is not None:
            return {"persistentVolumeClaim": {"claimName": claim}}
        if path is not None:
            return {
                "hostPath": {"path": posixpath.join(posixpath.normpath(path), dataset), "type": "DirectoryOrCreate"}
            }
        return {"emptyDir": {}}

    def sub_path_of(self, dataset: str) -> dict[str, str]:
        """Return the folder of the volume to mount: a claim may hold other datasets too."""
        return {} if self._after(_CLAIM) is None else {"subPath": dataset}
