"""Start ranks in processes of their own, as torchrun does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from tests.support.ports import free_port


def run_ranks(script: str, world_size: int = 2, **arguments: Any) -> list[Any]:
    """Run a script in each rank, with the environment of torchrun, and return the JSON that each has printed last.

    Args:
        script: Python code; its argument is the arguments as JSON.
        world_size: number of ranks.
        **arguments: plain JSON.
    """
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    ranks = []
    for rank in range(world_size):
        environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", script, json.dumps(arguments)]
        pipe = subprocess.PIPE
        environment["PYTHONFAULTHANDLER"] = "1"
        ranks.append(
            subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        )
    try:
        outputs = [rank.communicate(timeout=120) for rank in ranks]
    except subprocess.TimeoutExpired:
        for rank_process in ranks:
            os.killpg(rank_process.pid, signal.SIGABRT)  # each thread, of workers too, prints its stack
        raise AssertionError("\n".join(rank.communicate()[1] for rank in ranks)) from None
    finally:
        for rank_process in ranks:
            rank_process.kill()
            rank_process.wait()
    for process, (_, errors) in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(printed.splitlines()[-1]) for printed, _ in outputs]
