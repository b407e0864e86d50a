"""``TrainingJob``: a dataset, a range of numbers of pods, and their template; and where its dataset comes from.

A field that is needed is required here; what Kubernetes would say of a template it says when the manifests are applied.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ...errors import JobError
from ...storage.dataset_service.protocol import DATASET_NAME

T = TypeVar("T")
INIT_CONTAINER, VOLUME = "pull-dataset", "dataset"
GPUS = ("nvidia.com/gpu", "amd.com/gpu")  # resources of which one is one device
_MAX_PODS, _MAX_HOST_NAME = 100_000, 63  # Kubernetes' limits of an indexed Job, and of a host name
_NAME, _SERVICE = (
    re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?"),
    re.compile(r"[A-Za-z0-9.\[\]:-]*[A-Za-z0-9\]]:([0-9]{1,5})"),
)
_KINDS = {str: "a text, in quotes if it looks like something else", int: "a number", dict: "a mapping", list: "a list"}
TEMPLATE = ("spec", "replicaSpecs", "template")
_KNOWN = {  # a name that is misspelt would have no effect
    (): ("apiVersion", "kind", "metadata", "spec"),
    ("metadata",): ("name", "namespace", "labels"),
    ("spec",): ("dataset", "minSize", "maxSize", "replicaSpecs"),
    ("spec", "replicaSpecs"): ("template",),
    TEMPLATE: ("metadata", "spec"),
}


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A training on a dataset, by as many pods as available, within a range.

    Args:
        metadata: of the rendered objects: name, namespace (without one the current one when they are applied), labels.
        dataset: name of the dataset; mounted at ``/datasets/NAME``.
        min_size: least number of pods to train with.
        max_size: greatest number of pods.
        template: of its pods, a Kubernetes ``PodTemplateSpec``.
        source: name of its document, for errors.
    """

    metadata: dict[str, Any]
    dataset: str
    min_size: int
    max_size: int
    template: dict[str, Any]
    source: str = "the job"

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

        def get(kind: type[T], *keys: str | int) -> T:
            value = document
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else value[key] if isinstance(key, int) else None
            require(type(value) is kind, keys, value, _KINDS[kind])  # True is an int, too
            return cast(T, value)

        def require(is_right: bool, keys: tuple[str | int, ...], value: Any, expected: str) -> None:
            if not is_right:
                field = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)[1:]
                shown = "nothing" if value is None else f"{value!r:.100}"
                raise JobError(f"{source}: {field or 'the document'}: got {shown}, expected {expected}.")

        get(dict)
        for field, expected in (("apiVersion", "breezeml.ai/v1"), ("kind", "TrainingJob")):
            require(document.get(field) == expected, (field,), document.get(field), expected)
        for keys, known in _KNOWN.items():
            for key, value in get(dict, *keys).items():
                require(key in known, (*keys, key), value, f"no such field, but {', '.join(known)} only")
        dataset, name = get(str, "spec", "dataset"), get(str, "metadata", "name")
        low, high = get(int, "spec", "minSize"), get(int, "spec", "maxSize")
        letters = "1 to 128 letters, digits, '.', '_' and '-', of which the first is a letter or a digit"
        require(re.fullmatch(DATASET_NAME, dataset, re.ASCII) is not None, ("spec", "dataset"), dataset, letters)
        require(1 <= high <= _MAX_PODS, ("spec", "maxSize"), high, f"a number of pods from 1 to {_MAX_PODS:,}")
        require(1 <= low <= high, ("spec", "minSize"), low, f"a number of pods from 1 to maxSize, which is {high}")
        most = _MAX_HOST_NAME - len(f"-{high - 1}")  # of the job's name, from which the pods' host names are made
        expected = f"at most {most} lower-case letters, digits and hyphens, the first a letter, the last no hyphen"
        require(_NAME.fullmatch(name) is not None and len(name) <= most, ("metadata", "name"), name, expected)
        containers = (*TEMPLATE, "spec", "containers")
        require(bool(get(list, *containers)), containers, None, "a list of at least one container")
        for index in range(len(get(list, *containers))):
            for field in ("name", "image"):
                get(str, *containers, index, field)
        template = get(dict, *TEMPLATE)
        return cls(
            metadata=document["metadata"],
            dataset=dataset,
            min_size=low,
            max_size=high,
            template=template,
            source=source,
        )


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
