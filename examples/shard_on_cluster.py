r"""Shard a folder of pictures by many processes: of this machine, or of a cluster with Dask, MPI or Ray.

    python examples/shard_on_cluster.py --on processes [SOURCE TEMPLATE]

Without SOURCE and TEMPLATE it draws a few pictures into ``shard_on_cluster/`` and shards them there. On a cluster all
machines must have access to both: ``s3://photos/raw/ s3://photos/train/{shard:06d}.tar``, or a shared file system. Run
the same command to resume a job that was stopped. Below, ``JOB`` stands for
``examples/shard_on_cluster.py SOURCE TEMPLATE``, and ``IMAGE`` for a container image with Python, this repository and
``pip install -c constraints.txt -e '.[cluster]'``.

**processes**: one machine, as many workers as there are cores for it::

    python JOB --on processes
    sbatch --cpus-per-task 16 --wrap 'python JOB --on processes'                # Slurm
    kubectl create job shard --image IMAGE -- python JOB --on processes         # Kubernetes

**dask**: a scheduler, workers of one thread each, and this script as their client::

    dask scheduler --scheduler-file dask.json & dask worker --scheduler-file dask.json --nworkers 4 --nthreads 1 &
    python JOB --on dask --scheduler dask.json

    # Slurm, with dask.json on a shared file system
    sbatch --ntasks 64 --wrap 'rm -f dask.json; dask scheduler --scheduler-file dask.json &
        srun dask worker --scheduler-file dask.json --nthreads 1 & python JOB --on dask --scheduler dask.json'

    # Kubernetes, where Dask's operator has made the DaskCluster "photos"
    kubectl create job shard --image IMAGE -- python JOB --on dask --scheduler tcp://photos-scheduler:8786

**mpi**: one process hands out shards, the others write them. Debian's MPI is ``openmpi-bin libopenmpi-dev``::

    mpiexec -n 5 python -m mpi4py.futures JOB --on mpi
    sbatch --ntasks 65 --wrap 'srun --mpi=pmix python -m mpi4py.futures JOB --on mpi'             # Slurm

    # Kubernetes: the launcher's command in an MPIJob of Kubeflow's MPI operator
    mpirun -n 65 python -m mpi4py.futures JOB --on mpi

**ray**: a task for each shard::

    python JOB --on ray
    sbatch --nodes 4 --ntasks-per-node 1 \
        --wrap 'srun ray symmetric-run --address $(hostname):6379 --min-nodes 4 -- python JOB --on ray'     # Slurm
    ray job submit --address http://photos-head-svc:8265 -- python JOB --on ray              # Kubernetes: KubeRay

Dask and Ray reassign a lost worker's shard. MPI ends all processes when it loses one, and the standard library's pool
accepts no more tasks then: start the job again, and it writes the missing shards. (``num_workers=`` instead of
``executor=`` continues without a restart, on one machine.)
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

import torchdata_remote as tdr

FOLDER = "shard_on_cluster"
PIXELS = 48  # longest side of the written pictures


def main() -> None:
    parser = argparse.ArgumentParser(description="Shard pictures by the processes of a machine or a cluster.")
    parser.add_argument("source", nargs="?", help="folder or URL of JPEGs, in a folder for each class")
    parser.add_argument("template", nargs="?", help="URL of the shards, such as 's3://b/train/{shard:06d}.tar'")
    parser.add_argument("--on", choices=["processes", "dask", "mpi", "ray"], default="processes")
    parser.add_argument("--scheduler", help="of Dask: address or scheduler file; without it, workers on this machine")
    parser.add_argument("--max-shard-samples", type=int, default=10_000)
    options = parser.parse_args()
    if options.source is None:
        draw_pictures(Path(FOLDER, "pictures"))
        options.source, options.max_shard_samples = f"{FOLDER}/pictures", 25
    template = options.template or f"{FOLDER}/shards/{{shard:06d}}.tar"

    with open_executor(options.on, options.scheduler) as executor:
        shards = tdr.shard_dataset(
            options.source,
            template,
            max_shard_samples=options.max_shard_samples,
            labels=tdr.labels.parent_directory(),
            transform=smaller,
            executor=executor,
        )
    num_samples, num_bytes = sum(shard.num_samples for shard in shards), sum(shard.num_bytes for shard in shards)
    print(f"{num_samples:,} samples, {num_bytes:,} bytes in {len(shards)} shards: {shards[0].url} ...")


def smaller(sample: dict[str, Any]) -> dict[str, Any]:
    """Process a sample in a worker: here scale the picture down."""
    with Image.open(io.BytesIO(sample["jpg"])) as image:
        image.thumbnail((PIXELS, PIXELS))
        encoded = io.BytesIO()
        image.save(encoded, "JPEG", quality=90)
    return {**sample, "jpg": encoded.getvalue()}


@contextmanager
def open_executor(on: str, scheduler: str | None = None) -> Iterator[Executor]:
    """Run an executor within the block."""
    if on == "processes":
        context = multiprocessing.get_context("forkserver")  # a fork would share the store's connections
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), context) as executor:
            yield executor
    elif on == "dask":
        from distributed import Client

        where = {"scheduler_file": scheduler} if (scheduler or "").endswith(".json") else {"address": scheduler}
        with Client(**where) as client:
            yield client.get_executor()
    elif on == "mpi":
        from mpi4py.futures import MPIPoolExecutor

        with MPIPoolExecutor() as executor:
            yield executor
    else:
        import ray

        ray.init()  # the cluster that the job was submitted to, or one of this machine
        try:
            yield RayExecutor()
        finally:
            ray.shutdown()


class RayExecutor(Executor):
    """An executor of Ray tasks. Ray runs a task up to four times if its worker is lost."""

    def __init__(self) -> None:
        import ray

        self._call = ray.remote(call)
        self._cancel = ray.cancel

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        reference = self._call.remote(function, *args, **kwargs)
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda ended: self._cancel(reference) if ended.cancelled() else None)
        return future


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def draw_pictures(folder: Path) -> None:
    """Write 120 pictures of plain colours, in three classes."""
    for number in range(120):
        name, colour = [("red", (220, 20, 20)), ("green", (20, 200, 20)), ("blue", (20, 20, 220))][number % 3]
        path = folder / name / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (96, 64 + number % 32), colour).save(path)


if __name__ == "__main__":
    main()
