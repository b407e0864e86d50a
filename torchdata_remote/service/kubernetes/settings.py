"""What is told beside the job: where its dataset comes from, and where a pod keeps it."""

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
    """What a job's manifests depend on besides the job.

    Args:
        service: ``host:port`` of the dataset service, as pods reach it.
        image: of the container that pulls the dataset; it has to have this package. ``None`` is the job's own.
        token_secret: name of a Secret whose key ``token`` the service wants; ``None`` where it wants none.
        volume: ``emptyDir`` (each pod has its copy), ``hostPath:/path`` (the pods of a node share one, in a folder of
            the dataset's name below that path), or ``pvc:NAME`` (a PersistentVolumeClaim, in such a folder too).

    Raises:
        JobError: for a value that is none of these.

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
            raise JobError(f"service: came {self.service!r}, expected host:port, such as torchdata-remote:8080.")
        if self.image is not None and re.fullmatch(r"[!-~]+", self.image) is None:
            raise JobError(f"image: came {self.image!r}, expected the name of an image.")
        if self.token_secret is not None and _OBJECT_NAME.fullmatch(self.token_secret) is None:
            raise JobError(f"token secret: came {self.token_secret!r}, expected the name of a Secret.")
        claim, path = self._after(_CLAIM), self._after(_HOST_PATH)
        if claim is not None:
            good = _OBJECT_NAME.fullmatch(claim) is not None
        elif path is not None:  # the node's own root is nobody's place for data
            good = path.startswith("/") and ".." not in path.split("/") and posixpath.normpath(path).strip("/") != ""
        else:
            good = self.volume == "emptyDir"
        if not good:
            raise JobError(f"volume: came {self.volume!r}, expected emptyDir, hostPath:/path or pvc:NAME.")

    def _after(self, prefix: str) -> str | None:
        return self.volume.removeprefix(prefix) if self.volume.startswith(prefix) else None

    def volume_of(self, dataset: str) -> dict[str, Any]:
        """The source of a pod's volume, as Kubernetes spells it."""
        claim, path = self._after(_CLAIM), self._after(_HOST_PATH)
        if claim is not None:
            return {"persistentVolumeClaim": {"claimName": claim}}
        if path is not None:
            return {
                "hostPath": {"path": posixpath.join(posixpath.normpath(path), dataset), "type": "DirectoryOrCreate"}
            }
        return {"emptyDir": {}}

    def sub_path_of(self, dataset: str) -> dict[str, str]:
        """The folder of the volume that is mounted, for a mount: other datasets may lie beside it."""
        return {} if self._after(_CLAIM) is None else {"subPath": dataset}
