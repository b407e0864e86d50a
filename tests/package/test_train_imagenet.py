"""``examples/train_imagenet.py`` trains from loose files and shards, in one or more ranks, and resumes after a stop."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.support.paths import ROOT
from tests.support.shard_places import Place

EXAMPLE = ROOT / "examples" / "train_imagenet.py"
NUM_IMAGES, CLASSES = 36, ("ant", "bee", "cat")
SMALL = ("--image-size", "28", "--batch-size", "6", "--workers", "1", "--model", "tiny")


def pictures() -> dict[str, bytes]:
    """Small pictures, in a folder for each class."""
    source, made = np.random.default_rng(0), {}
    for number in range(NUM_IMAGES):
        file = io.BytesIO()
        Image.fromarray(source.integers(0, 255, (30, 40, 3), np.uint8)).save(file, "JPEG")
        made[f"{CLASSES[number % 3]}/{number:03d}.jpg"] = file.getvalue()
    return made


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return Place(f"{tmp_path}/pictures/")


@pytest.fixture
def remote(moto: S3Server) -> Place:
    return Place(f"s3://{moto.new_bucket()}/pictures/", moto)


def shards_of(place: Place) -> str:
    """Pictures as shards, with a manifest."""
    template = f"{place.below('shards').url}{{shard:02d}}.tar"
    tdr.shard_dataset(
        place.below("loose").put(pictures()),
        template,
        labels=tdr.labels.parent_directory(),
        max_shard_samples=9,
        storage_options=place.options,
    )
    return template.rpartition("/")[0]


def environment(server: S3Server | None) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **(server.environment if server is not None else {})}


def run(*arguments: str, server: S3Server | None = None, ranks: int = 1) -> str:
    """The output of the example."""
    program = [sys.executable]
    if ranks > 1:
        program += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", f"{ranks}"]
    done = subprocess.run(
        [*program, str(EXAMPLE), *arguments, *SMALL],
        capture_output=True, text=True, timeout=240, check=False, env=environment(server),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"epoch \d+: +\d+%.* images/s\]", done.stderr), done.stderr
    return done.stdout


def images_of_epochs(printed: str) -> list[int]:
    return [int(number) for number in re.findall(r"^epoch \d+: ([\d,]+) images, ", printed, re.MULTILINE)]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    saved: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    found: dict[str, torch.Tensor] = saved["model"]
    return found


def assert_same_weights(one: Path, other: Path) -> None:
    """To the last bit."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_help_names_every_option() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE), "--help"], capture_output=True, text=True, check=True)
    for option in ("--classes", "--index", "--credentials", "--endpoint-url", "--dataset-limit", "--cache-dir"):
        assert re.search(rf"^  {option} .*\w", done.stdout, re.MULTILINE), option


@pytest.mark.slow  # four trainings
def test_training_on_loose_files_resumes_after_ctrl_c(local: Place, tmp_path: Path) -> None:
    """With the weights of a training that was not stopped; Ctrl-C reaches its workers, too."""
    url, whole, stopped = local.put(pictures()), tmp_path / "whole", tmp_path / "stopped"
    assert images_of_epochs(run(url, "--epochs", "12", "--checkpoint", str(whole))) == [NUM_IMAGES] * 12
    command = [sys.executable, str(EXAMPLE), url, "--epochs", "12", "--checkpoint", str(stopped), *SMALL]
    with subprocess.Popen(
        command,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment(None),
    ) as process:
        assert process.stdout is not None
        printed = ""
        while "epoch 1:" not in printed:
            line = process.stdout.readline()
            assert line, printed
            printed += line
        os.killpg(process.pid, signal.SIGINT)
        printed += process.stdout.read()
    assert process.returncode == 0, printed
    assert re.search(r"^stopped in epoch \d+ after step \d+; the same command resumes$", printed, re.MULTILINE)
    printed += run(url, "--epochs", "12", "--checkpoint", str(stopped), "--max-steps", "2")
    printed += run(url, "--epochs", "12", "--checkpoint", str(stopped))
    assert printed.count("stopped in epoch") == 2
    assert_same_weights(whole, stopped)


def test_options_of_a_bucket_are_read_from_files(remote: Place, moto: S3Server, tmp_path: Path) -> None:
    """Credentials, index and classes from the credential file; with a cache and a limit."""
    url = remote.put(pictures())
    bucket = url.removeprefix("s3://").partition("/")[0]
    keys = [f"pictures/{name}" for name in pictures()]
    classes = {name: {"id": 1 + number, "name": name.upper()} for number, name in enumerate((*CLASSES, "dog"))}
    remote.below("lists").put({"train.json": json.dumps(keys).encode(), "classes.json": json.dumps(classes).encode()})
    credentials = tmp_path / "credentials.json"
    content = {"aws_access_key_id": moto.key, "aws_secret_access_key": moto.secret, "bucket_name": bucket}
    content["train_index_file_download_url"] = f"{url}lists/train.json"
    content["train_classes_file_download_url"] = f"{url}lists/classes.json"
    credentials.write_text(json.dumps(content))
    printed = run(
        *(url, "--credentials", str(credentials), "--endpoint-url", moto.endpoint_url, "--dataset-limit", "20"),
        *("--cache-dir", str(tmp_path / "cache"), "--epochs", "2", "--checkpoint", str(tmp_path / "checkpoint")),
    )
    assert images_of_epochs(printed) == [18, 18]
    assert weights(tmp_path / "checkpoint")["6.bias"].shape == (4,)
    kept = [path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    found = [picture for picture in pictures().values() if any(picture in data for data in kept)]
    assert len(found) >= 18


@pytest.mark.slow  # resuming of ranks is tested without torchrun
def test_two_ranks_with_shards_resume_with_the_same_weights(local: Place, tmp_path: Path) -> None:
    """By torchrun: both ranks have the same number of images, within a limit."""
    url, whole, stopped = shards_of(local), tmp_path / "whole", tmp_path / "stopped"
    limited = ("--epochs", "2", "--dataset-limit", "24", "--checkpoint")
    assert images_of_epochs(run(url, *limited, str(whole), ranks=2)) == [24, 24]
    assert "after step 1;" in run(url, *limited, str(stopped), "--max-steps", "1", ranks=2)
    assert images_of_epochs(run(url, *limited, str(stopped), ranks=2)) == [12, 24]
    assert_same_weights(whole, stopped)
