"""``TrainingJob``: a dataset, a range of numbers of pods, and their template; and where its dataset comes from."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import JobError
from ...storage.dataset_service.protocol import DATASET_NAME

if TYPE_CHECKING:
    from .documents import Field  # for which PyYAML is installed

API_VERSION, KIND = "breezeml.ai/v1", "TrainingJob"
INIT_CONTAINER, VOLUME = "pull-dataset", "dataset"
GPUS = ("nvidia.com/gpu", "amd.com/gpu")  # resources of which one is one device
_JOBS_LABELS = ("batch.kubernetes.io/", "job-name", "controller-uid")  # set by the Job on its pods
_MAX_PODS, _MAX_HOST_NAME = 100_000, 63  # Kubernetes' limits of an indexed Job, and of a host name
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SERVICE = re.compile(r"(?:[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})")
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A training on a dataset, by as many pods as available, within a range.

    Args:
        name: of the job and its objects.
        namespace: ``None`` for the current one when the manifests are applied.
        labels: of the rendered objects, not of the pods.
        dataset: name of the dataset; mounted at ``/datasets/NAME``.
        min_size: least number of pods to train with.
        max_size: greatest number of pods.
        template: of its pods, a Kubernetes ``PodTemplateSpec``.
    """

    name: str
    namespace: str | None = None
    labels: dict[str, str]
    dataset: str
    min_size: int
    max_size: int
    template: dict[str, Any]

    @property
    def folder(self) -> str:
        """Return the folder at which the dataset is mounted."""
        return f"/datasets/{self.dataset}"

    @classmethod
    def parse(cls, document: Field) -> TrainingJob:
        """Parse a document.

        Raises:
            JobError: if it is no valid TrainingJob; names file and field, the value, and what was expected.
        """
        document.mapping("apiVersion", "kind", "metadata", "spec")
        for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
            document.at(key).text(re.escape(expected), expected)
        spec = _part(document, "spec", "dataset", "minSize", "maxSize", "replicaSpecs")
        dataset = spec.at("dataset").text(
            DATASET_NAME, "1 to 128 letters, digits, '.', '_' and '-', of which the first is a letter or a digit"
        )
        min_size, max_size = _size(spec.at("minSize")), _size(spec.at("maxSize"))
        if min_size > max_size:
            raise spec.at("minSize").wrong(f"at most maxSize, which is {max_size}")
        template = _part(_part(spec, "replicaSpecs", "template"), "template", "metadata", "spec")
        _require_template(template, f"/datasets/{dataset}")
        metadata = _part(document, "metadata", "name", "namespace", "labels")
        return cls(
            name=_name(metadata.at("name"), max_size),
            namespace=metadata.at("namespace").dns_label() if "namespace" in metadata.value else None,
            labels={key: metadata.at("labels").at(key).any_text() for key in metadata.at("labels").mapping().value},
            dataset=dataset,
            min_size=min_size,
            max_size=max_size,
            template=template.value,
        )


def _part(parent: Field, key: str, *known: str) -> Field:
    return parent.at(key).mapping(*known, required=f"a mapping of {', '.join(known)}")


def _size(field: Field) -> int:
    value = field.value
    if type(value) is not int or not 1 <= value <= _MAX_PODS:  # True is an int too
        raise field.wrong(f"a number of pods from 1 to {_MAX_PODS:,}")
    return value


def _name(field: Field, max_size: int) -> str:
    """Return the job's name, from which the pods' host names are made."""
    name, most = field.text(), _MAX_HOST_NAME - len(f"-{max_size - 1}")
    if _NAME.fullmatch(name) is None or len(name) > most:
        letters = "lower-case letters, digits and hyphens, the first a letter, the last no hyphen"
        raise field.wrong(f"at most {most} {letters}")
    return name


def _require_template(template: Field, folder: str) -> None:
    """Require a template of pods that the dataset and torchrun's settings can be added to.

    Nothing else is checked: whether the rest is valid depends on the version of Kubernetes.

    Args:
        template: a ``PodTemplateSpec``.
        folder: at which the dataset will be mounted.
    """
    metadata = template.at("metadata").mapping()
    for kind in ("labels", "annotations"):
        for one in metadata.at(kind).fields():
            one.any_text()
    for key in metadata.at("labels").mapping().value:
        if key.startswith(_JOBS_LABELS):
            raise metadata.at("labels").at(key).wrong("no label that the Job itself gives")
    spec = template.at("spec").mapping(required="a mapping with containers")
    if spec.value.get("restartPolicy") not in (None, "Never"):
        why = "torchrun restarts processes, and the Job makes new pods"
        raise spec.at("restartPolicy").wrong(f"Never, or nothing: {why}")
    if spec.value.get("hostNetwork") and spec.value.get("dnsPolicy") != "ClusterFirstWithHostNet":
        why = "beside hostNetwork, so that the first pod is found"
        raise spec.at("dnsPolicy").wrong(f"ClusterFirstWithHostNet {why}")
    for volume in spec.at("volumes").elements():
        _require_other_name(volume, VOLUME, "volume")
    containers = spec.at("containers").elements()
    if not containers:
        raise spec.at("containers")._replace(value=None).wrong("a list of at least one container")
    for container in (*containers, *spec.at("initContainers").elements()):
        _require_container(container, folder)


def _require_other_name(field: Field, added: str, what: str) -> None:
    if field.mapping(required="a mapping").at("name").dns_label() == added:
        raise field.at("name").wrong(f"another name: this {what} is added")


def _require_container(container: Field, folder: str) -> None:
    _require_other_name(container, INIT_CONTAINER, "container")
    container.at("image").text(expected="the name of an image")
    for one in (*container.at("command").elements(), *container.at("args").elements()):
        one.any_text()
    for variable in container.at("env").elements():
        variable.mapping(required="a mapping").at("name").text()
        if "value" in variable.value:
            variable.at("value").any_text()
    for mount in container.at("volumeMounts").elements():
        at = mount.mapping(required="a mapping").at("mountPath")
        if f"{posixpath.normpath(at.text())}/".startswith(f"{folder}/"):
            raise at.wrong(f"a path that is not in {folder}, where the dataset is mounted")
    container.at("securityContext").mapping()
    for kind in ("limits", "requests"):
        for amount in container.at("resources").mapping().at(kind).fields():
            if amount.path.endswith(tuple(f"['{name}']" for name in GPUS)) and not str(amount.value).isdecimal():
                raise amount.wrong("a number of devices")


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
        kind, colon, place = self.volume.partition(":")
        good = {
            "emptyDir": not colon,
            "pvc": _OBJECT_NAME.fullmatch(place) is not None,
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
