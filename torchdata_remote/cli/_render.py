"""``torchdata-remote render``."""

from __future__ import annotations

import argparse
import sys

from ..errors import JobError
from ..service.kubernetes import RenderSettings, TrainingJob, render
from ._shared import Commands, add_command, printable

_STANDARD_INPUT = "-"


def add(commands: Commands) -> None:
    """Tell the command line of this command."""
    default = RenderSettings()
    parser = add_command(
        commands,
        "render",
        _run,
        does="turn a TrainingJob into manifests of Kubernetes. Pods find their dataset at /datasets/NAME, pulled "
        "before they start, and torchrun's settings in their environment. The manifests go to standard output.",
        example="render job.yaml --volume hostPath:/var/datasets | kubectl apply -f -",
    )
    parser.add_argument("job", help="YAML file of one TrainingJob or several; - is standard input")
    parser.add_argument("-o", "--output", metavar="FILE", help="write them there instead")
    parser.add_argument(
        "--service",
        default=default.service,
        metavar="HOST:PORT",
        help="the dataset service, as pods reach it (default: %(default)s)",
    )
    parser.add_argument(
        "--volume",
        default=default.volume,
        metavar="VOLUME",
        help="where a pod keeps the dataset: emptyDir; hostPath:/path, which the pods of a node share; or pvc:NAME "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        help="of the container that pulls; it has torchdata_remote (default: that of the job's first container)",
    )
    parser.add_argument(
        "--token-secret", metavar="NAME", help="Secret whose key 'token' the service wants; pods get it to pull with"
    )


def _run(chosen: argparse.Namespace) -> int:
    settings = RenderSettings(
        service=chosen.service, volume=chosen.volume, image=chosen.image, token_secret=chosen.token_secret
    )
    source = "standard input" if chosen.job == _STANDARD_INPUT else printable(chosen.job)
    try:
        from ..service.kubernetes.yaml_documents import read_documents, write_documents  # PyYAML is optional
    except ImportError as error:
        raise JobError(str(error)) from error
    try:
        given = sys.stdin.buffer.read() if chosen.job == _STANDARD_INPUT else _read(chosen.job)
    except OSError as error:
        raise JobError(f"{source}: cannot be read: {error.strerror or error}.") from error
    jobs = [TrainingJob.parse(document, place) for document, place in read_documents(given, source)]
    if not jobs:
        raise JobError(f"{source}: got nothing, expected a TrainingJob.")
    _require_different_names(jobs, source)
    text = write_documents(manifest for job in jobs for manifest in render(job, settings))
    if chosen.output is None:
        sys.stdout.write(text)
        return 0
    try:
        with open(chosen.output, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise JobError(f"{printable(chosen.output)}: cannot be written: {error.strerror or error}.") from error
    return 0


def _require_different_names(jobs: list[TrainingJob], source: str) -> None:
    """Or one would take the other one's place when they are applied."""
    seen: set[tuple[str | None, str]] = set()
    for job in jobs:
        if (job.namespace, job.name) in seen:
            raise JobError(f"{source}: metadata.name: got {job.name!r} twice, expected another name for each job.")
        seen.add((job.namespace, job.name))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
