"""Commands of the dataset service: ``serve``, ``render``, ``push`` and ``pull``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..core.files import replaced
from ..core.urls import redact
from ..errors import AccessDeniedError, JobError, ServiceError
from .shared import Count, CountOrNone, Json, Port, Seconds, print_line, printable

if TYPE_CHECKING:
    from ..service.transfer import Transferred


def serve(
    *,
    root: str = "datasets",
    host: str = "127.0.0.1",
    port: Port = 8080,
    token_file: str | None = None,
    max_file_bytes: Count = 1 << 40,
    min_free_bytes: CountOrNone = 1 << 30,
    idle_timeout: Seconds = 60.0,
    head_timeout: Seconds = 30.0,
    certificate: str | None = None,
    key: str | None = None,
    pass_through: bool = False,
    storage_options: Json = None,
) -> None:
    """Host datasets over HTTP: the folders of a local folder, or of a bucket of S3, Google or Azure.

    Several services may serve one bucket. A web page shows the datasets and accepts uploads.

    example: torchdata-remote serve --root /data --host 0.0.0.0 --token-file token

    Args:
        root: folder whose subfolders are the datasets
        host: address to listen on; any other than loopback needs a token
        port: 0 picks a free port
        token_file: file with the token that requests must present
        max_file_bytes: size limit of a file
        min_free_bytes: disk space kept free
        idle_timeout: seconds without a byte of a request's body, or without one that the other side takes of a response
        head_timeout: seconds within which a request's head arrives, and after which an idle connection ends
        certificate: serve https: file with the certificate in PEM, with those between
        key: file with the private key of the certificate, in PEM
        pass_through: send the files of a bucket, where clients cannot reach it; otherwise reads are redirected to
            signed URLs of it
        storage_options: JSON for the store, in fsspec's vocabulary, such as {"endpoint_url": "http://host:9000"}
    """
    if (certificate is None) != (key is None):
        raise ServiceError("--certificate and --key belong together: pass both, or none for http.")

    def report(address: str) -> None:
        scheme, secure = ("http", "") if certificate is None else ("https", ", with secure=True")
        in_code = f"datasets://{address}/NAME in code{secure}"
        print_line(f"{scheme}://{address}/ serves {printable(root)}; {in_code}. Ctrl-C stops it.")
        sys.stdout.flush()

    try:
        from ..service.server.limits import ServiceLimits
        from ..service.server.serving import Certificate
        from ..service.server.serving import serve as serve_until_stopped
    except ImportError as error:
        raise ServiceError(f"{error}. The service needs: pip install 'torchdata_remote[service]'") from error
    serve_until_stopped(
        root,
        host=host,
        port=port,
        token_file=token_file,
        certificate=None if certificate is None or key is None else Certificate(certificate, key),
        limits=ServiceLimits(
            max_file_bytes=max_file_bytes,
            min_free_bytes=min_free_bytes,
            idle_timeout_s=idle_timeout,
            head_timeout_s=head_timeout,
        ),
        storage_options=storage_options,
        pass_through=pass_through,
        on_listening=report,
    )


def render(
    job: Annotated[str, Parameter(allow_leading_hyphen=True)],
    *,
    output: Annotated[str | None, Parameter(("--output", "-o"))] = None,
    service: str = "torchdata-remote:8080",
    volume: str = "emptyDir",
    image: str | None = None,
    token_secret: str | None = None,
) -> None:
    """Render a TrainingJob as Kubernetes manifests.

    Pods have their dataset at /datasets/NAME, pulled before they start, and torchrun's settings in their environment.
    The manifests are written to standard output.

    example: torchdata-remote render job.yaml --volume hostPath:/var/datasets | kubectl apply -f -

    Args:
        job: YAML file of one TrainingJob or several; - is standard input
        output: file to write instead of standard output
        service: HOST:PORT of the dataset service, as seen by pods
        volume: where a pod keeps the dataset: emptyDir; hostPath:/path, which the pods of a node share; or pvc:NAME
        image: of the container that pulls; must have torchdata_remote; by default that of the job's first container
        token_secret: name of a Secret with the service's token under the key 'token', which pods pull with
    """
    from ..service.kubernetes import RenderSettings, TrainingJob
    from ..service.kubernetes import render as manifests_of

    try:
        from ..service.kubernetes.documents import read_documents, write_documents  # PyYAML is optional
    except ImportError as error:
        raise JobError(str(error)) from error
    settings = RenderSettings(service=service, volume=volume, image=image, token_secret=token_secret)
    source = "standard input" if job == "-" else printable(job)
    content = sys.stdin.buffer.read() if job == "-" else Path(job).read_bytes()
    documents = read_documents(content, source)
    places = [source] if len(documents) == 1 else [f"{source}, document {i}" for i in range(1, len(documents) + 1)]
    jobs = [TrainingJob.parse(document, place) for document, place in zip(documents, places, strict=True)]
    names = [(one.metadata.get("namespace"), one.name) for one in jobs]
    if not jobs:
        raise JobError(f"{source}: expected a TrainingJob, got an empty document.")
    if twice := [name for name in names if names.count(name) > 1]:  # applying one would replace the other
        raise JobError(f"{source}: metadata.name: {twice[0][1]!r} is used twice; each job needs its own name.")
    text = write_documents(manifest for one in jobs for manifest in manifests_of(one, settings))
    if output is None:
        sys.stdout.write(text)
        return
    with replaced(output) as partial, open(partial, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def push(
    folder: str,
    url: str,
    *,
    delete: bool = False,
    token_file: str | None = None,
    max_in_flight: Count = 16,
    quiet: bool = False,
    storage_options: Json = None,
) -> None:
    """Copy a folder into a dataset of a service; only files that the dataset does not have.

    An interrupted push resumes when it is started again.

    example: torchdata-remote push /data/photos datasets://storage:8080/photos

    Args:
        folder: copied with all folders below it
        url: datasets://host:port/name, or a folder in it; created if it does not exist
        delete: remove files from the dataset that the folder does not have
        token_file: file with the service's token
        max_in_flight: concurrent requests
        quiet: no progress bar
        storage_options: JSON for the store, in fsspec's vocabulary, such as {"endpoint_url": "http://host:9000"}
    """
    options = {"max_in_flight": max_in_flight, "progress": not quiet, "delete": delete}
    _transfer("push", folder, url, _with_token(storage_options, token_file), "sent", **options)


def pull(
    url: str,
    folder: str,
    *,
    delete: bool = False,
    token_file: str | None = None,
    max_in_flight: Count = 16,
    quiet: bool = False,
    storage_options: Json = None,
) -> None:
    """Copy a dataset of a service into a folder; only files that the folder does not have.

    An interrupted pull resumes when it is started again; several that share the folder fetch each file once.

    example: torchdata-remote pull datasets://storage:8080/photos /datasets/photos

    Args:
        url: datasets://host:port/name, or a folder in it
        folder: created if it does not exist
        delete: remove files that the dataset does not have, and replace those that were not pulled or were changed
        token_file: file with the service's token
        max_in_flight: concurrent requests
        quiet: no progress bar
        storage_options: JSON for the store, in fsspec's vocabulary, such as {"endpoint_url": "http://host:9000"}
    """
    options = {"max_in_flight": max_in_flight, "progress": not quiet, "delete": delete}
    _transfer("pull", url, folder, _with_token(storage_options, token_file), "fetched", **options)


def _with_token(options: Json, token_file: str | None) -> Json:
    if token_file is None:
        return options
    try:
        token = Path(token_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AccessDeniedError(f"{token_file}: the token cannot be read: {error}.") from error
    if not token:
        raise AccessDeniedError(f"{token_file} is empty, where the service's token was expected.")
    return {**(options or {}), "token": token}


def _transfer(name: str, source: str, target: str, storage_options: Json, verb: str, **options: Any) -> None:
    from ..service import transfer

    done: Transferred = getattr(transfer, name)(source, target, storage_options=storage_options, **options)
    rate = done.num_bytes / 1e6 / max(done.elapsed_s, 1e-3)
    copied = f"{done.num_files:,} files, {done.num_bytes:,} bytes {verb} in {done.elapsed_s:.1f} s ({rate:,.1f} MB/s)"
    others = {
        "unchanged": done.num_unchanged,
        "removed": done.num_removed,
        "others left alone (--delete removes them)": done.num_foreign,
    }
    counted = (f", {number:,} {state}" for state, number in others.items() if number)
    print_line(f"{printable(redact(target))}: {copied}{''.join(counted)}")
