"""``TrainingJob``: a dataset, a range of numbers of pods, and their template; and where its dataset comes from.

A field that is needed is required here; what Kubernetes would say of a template it says when the manifests are applied.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Any

from ...errors import JobError
from ...storage.dataset_service.protocol import DATASET_NAME

INIT_CONTAINER, VOLUME = "pull-dataset", "dataset"
GPUS = ("nvidia.com/gpu", "amd.com/gpu")  # resources of which one is one device
_MAX_PODS, _MAX_HOST_NAME = 100_000, 63  # Kubernetes' limits of an indexed Job, and of a host name
_NAME, _SERVICE = (
    re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?"),
    re.compile(r"[A-Za-z0-9.\[\]:-]*[A-Za-z0-9\]]:([0-9]{1,5})"),
)
_MAX_SHOWN = 100  # characters of a value in an error
# What a job has to have: types, values, mappings, whose optional keys have a question mark, and may have others where
# ``...`` is a key, and lists of one kind of elements
_Shape = dict[Any, Any]
_ANY: _Shape = {...: object}
_CONTAINER: _Shape = {
    "name": str,
    "image": str,
    "env?": [{"name": str, **_ANY}],
    "volumeMounts?": [_ANY],
    "resources?": {"limits?": _ANY, "requests?": _ANY, **_ANY},
    "securityContext?": _ANY,
    **_ANY,
}
_POD: _Shape = {"containers": [_CONTAINER], "initContainers?": [_ANY], "volumes?": [_ANY], **_ANY}
_JOB: _Shape = {
    "apiVersion": "breezeml.ai/v1",
    "kind": "TrainingJob",
    "metadata": {"name": str, "namespace?": str, "labels?": {...: str}},
    "spec": {
        "dataset": str,
        "minSize": int,
        "maxSize": int,
        "replicaSpecs": {"template": {"metadata?": _ANY, "spec": _POD}},
    },
}
_KINDS = {str: "a text, in quotes if it looks like something else", int: "a number", dict: "a mapping", list: "a list"}


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A training on a dataset, by as many pods as available, within a range.

    Args:
        metadata: of the rendered objects: name, namespace (without one the current one when they are applied), labels.
        dataset: name of the dataset; mounted at ``/datasets/NAME``.
        min_size: least number of pods to train with.
        max_size: greatest number of pods.
        template: of its pods, a Kubernetes ``PodTemplateSpec``.
    """

    metadata: dict[str, Any]
    dataset: str
    min_size: int
    max_size: int
    template: dict[str, Any]

    @property
    def name(self) -> str:
        """Return the name of the job and its objects."""
        return str(self.metadata["name"])

    @property
    def folder(self) -> str:
        """Return the folder at which the dataset is mounted."""
        return f"/datasets/{self.dataset}"

    @classmethod
    def parse(cls, document: Any, source: str) -> TrainingJob:
        """Parse a document.

        Args:
            document: read from YAML.
            source: its name, for errors.

        Raises:
            JobError: if it is no valid TrainingJob; names file and field, the value, and what was expected.
        """
        _require(document, _JOB, source, "")
        spec, metadata = document["spec"], document["metadata"]

        def require(is_right: bool, field: str, value: Any, expected: str) -> None:
            if not is_right:
                raise _wrong(source, field, value, expected)

        dataset, low, high, name = spec["dataset"], spec["minSize"], spec["maxSize"], metadata["name"]
        letters = "1 to 128 letters, digits, '.', '_' and '-', of which the first is a letter or a digit"
        require(re.fullmatch(DATASET_NAME, dataset, re.ASCII) is not None, "spec.dataset", dataset, letters)
        require(1 <= high <= _MAX_PODS, "spec.maxSize", high, f"a number of pods from 1 to {_MAX_PODS:,}")
        require(1 <= low <= high, "spec.minSize", low, f"a number of pods from 1 to maxSize, which is {high}")
        most = _MAX_HOST_NAME - len(f"-{high - 1}")  # of the job's name, from which the pods' host names are made
        expected = f"at most {most} lower-case letters, digits and hyphens, the first a letter, the last no hyphen"
        require(_NAME.fullmatch(name) is not None and len(name) <= most, "metadata.name", name, expected)
        template = spec["replicaSpecs"]["template"]
        where, containers = "spec.replicaSpecs.template.spec.containers", template["spec"]["containers"]
        require(bool(containers), where, None, "a list of at least one container")
        for index, container in enumerate(containers):
            for kind, number in ((container.get("resources") or {}).get("limits") or {}).items():
                field = f"{where}[{index}].resources.limits[{kind!r}]"
                require(kind not in GPUS or str(number).isdecimal(), field, number, "a number of devices")
        return cls(metadata=metadata, dataset=dataset, min_size=low, max_size=high, template=template)


def _require(value: Any, shape: Any, source: str, field: str) -> None:
    """Require that a value has a shape, as those above."""
    if isinstance(shape, str):
        if value != shape:
            raise _wrong(source, field, value, shape)
        return
    kind = shape if isinstance(shape, type) else type(shape)
    if kind is not object and type(value) is not kind:  # True is an int, too
        raise _wrong(source, field, value, _KINDS[kind])
    if kind is list:
        for index, one in enumerate(value):
            _require(one, shape[0], source, f"{field}[{index}]")
    if kind is not dict:
        return
    known = {str(key).removesuffix("?"): key for key in shape if key is not ...}
    for key, one in {**dict.fromkeys(known), **value}.items():
        name = known.get(key, ...)
        if name not in shape:
            raise _wrong(source, f"{field}.{key}".strip("."), one, f"no such field, but {', '.join(known)} only")
        if one is not None or name is ... or not name.endswith("?"):
            _require(one, shape[name], source, f"{field}.{key}".strip("."))


def _wrong(source: str, field: str, value: Any, expected: str) -> JobError:
    """Make the error for a wrong value."""
    shown = repr(value)
    if value is None:
        shown = "nothing"
    elif isinstance(value, dict | list):
        kind = "mapping" if isinstance(value, dict) else "list"
        shown = f"a {kind}" if value else f"an empty {kind}"
    elif len(shown) > _MAX_SHOWN:
        shown = shown[:_MAX_SHOWN] + "..."
    return JobError(f"{source}: {field or 'the document'}: got {shown}, expected {expected}.")


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
        if match is None or not 1 <= int(match[1]) <= 65_535:
            raise JobError(f"service: got {self.service!r}, expected host:port, such as torchdata-remote:8080.")
        kind, colon, place = self.volume.partition(":")
        good = {
            "emptyDir": not colon,
            "pvc": place != "",
            # not the root of the node's file system
            "hostPath": place.startswith("/") and ".." not in place.split("/") and place.strip("/.") != "",
        }
        if not good.get(kind):
            raise JobError(f"volume: got {self.volume!r}, expected emptyDir, hostPath:/path or pvc:NAME.")

    def volume_of(self, dataset: str) -> dict[str, Any]:
        """Return the source of a pod's volume in Kubernetes' terms."""
        kind, _, place = self.volume.partition(":")
        if kind == "pvc":
            return {"persistentVolumeClaim": {"claimName": place}}
        if kind == "hostPath":
            path = posixpath.join(posixpath.normpath(place), dataset)
            return {"hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        return {"emptyDir": {}}

    def sub_path_of(self, dataset: str) -> dict[str, str]:
        """Return the folder of the volume to mount: a claim may hold other datasets too."""
        return {"subPath": dataset} if self.volume.startswith("pvc:") else {}
