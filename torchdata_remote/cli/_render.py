"""``torchdata-remote render``."""

from __future__ import annotations

import argparse
import sys

from ..core.files import replaced
from ..errors import JobError
from ..service.kubernetes import RenderSettings, TrainingJob, render
from ._shared import Commands, add_command, printable

_STANDARD_INPUT = "-"


def add(commands: Commands) -> None:
    """Add this command's parser."""
    default = RenderSettings()
    parser = add_command(
        commands,
        "render",
        _run,
        description="render a TrainingJob as Kubernetes manifests. Pods have their dataset at /datasets/NAME, pulled "
        "before they start, and torchrun's settings in their environment. The manifests are written to "
        "standard output.",
        example="render job.yaml --volume hostPath:/var/datasets | kubectl apply -f -",
    )
    parser.add_argument("job", help="YAML file of one TrainingJob or several; - is standard input")
    parser.add_argument("-o", "--output", metavar="FILE", help="file to write instead of standard output")
    parser.add_argument(
        "--service",
        default=default.service,
        metavar="HOST:PORT",
        help="address of the dataset service, as seen by pods (default: %(default)s)",
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
        help="of the container that pulls; must have torchdata_remote (default: that of the job's first container)",
    )
    parser.add_argument(
        "--token-secret",
        metavar="NAME",
        help="Secret with the service's token under the key 'token', which pods pull with",
    )


def _run(args: argparse.Namespace) -> int:
    settings = RenderSettings(
        service=args.service, volume=args.volume, image=args.image, token_secret=args.token_secret
    )
    source = "standard input" if args.job == _STANDARD_INPUT else printable(args.job)
    try:
        from ..service.kubernetes.yaml_documents import read_documents, write_documents  # PyYAML is optional
    except ImportError as error:
        raise JobError(str(error)) from error
    try:
        content = sys.stdin.buffer.read() if args.job == _STANDARD_INPUT else _read(args.job)
    except OSError as error:
        raise JobError(f"{source}: cannot be read: {error.strerror or error}.") from error
    jobs = [TrainingJob.parse(document, position) for document, position in read_documents(content, source)]
    if not jobs:
        raise JobError(f"{source}: expected a TrainingJob, got an empty document.")
    _require_different_names(jobs, source)
    text = write_documents(manifest for job in jobs for manifest in render(job, settings))
    if args.output is None:
        sys.stdout.write(text)
        return 0
    try:
        with replaced(args.output) as partial, open(partial, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise JobError(f"{printable(args.output)}: cannot be written: {error.strerror or error}.") from error
    return 0


def _require_different_names(jobs: list[TrainingJob], source: str) -> None:
    """Raise if two jobs have the same name: applying one would replace the other."""
    seen: set[tuple[str | None, str]] = set()
    for job in jobs:
        if (job.namespace, job.name) in seen:
            raise JobError(f"{source}: metadata.name: {job.name!r} is used twice; each job needs its own name.")
        seen.add((job.namespace, job.name))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
