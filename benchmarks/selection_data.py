"""Datasets for ``bench_selection.py``: images, captions, both, and the same for each peer; videos of noise."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from selection_peers import BOTH, CAPTIONS, CHUNKS, CLIP_S, IMAGES, OTHER_SHARDS, PARQUET, VIDEOS
from tar_peers import write_litdata

import torchdata_remote as tdr

JPG_BYTES, JSON_BYTES = 94_000, 1_000
MISSING = 33  # one caption of so many is missing in the other shards
FRAMES_PER_S, PIXELS = 25, (640, 480)


@dataclass(frozen=True)
class Written:
    """What the folder holds: keys in the order of the shards, and the bytes of a clip."""

    keys: list[str]
    num_shards: int
    parquet: list[str]
    num_videos: int
    clip_bytes: int
    video_bytes: int


def write(folder: Path, num_shards: int, shard_samples: int, video: tuple[int, int] | None) -> Written:
    source = random.Random(0)
    keys = [f"{number:06d}" for number in range(num_shards * shard_samples)]
    samples = [{"jpg": source.randbytes(JPG_BYTES), "json": _caption(source)} for _ in keys]
    for bucket, extensions, size in (
        (IMAGES, ("jpg",), shard_samples),
        (CAPTIONS, ("json",), shard_samples),
        (OTHER_SHARDS, ("json",), shard_samples * 7 // 5),
        (BOTH, ("jpg", "json"), shard_samples),
    ):
        with tdr.ShardWriter(f"{folder}/{bucket}/{{shard:06d}}.tar", max_shard_samples=size) as writer:
            for number, (key, sample) in enumerate(zip(keys, samples, strict=True)):
                if bucket != OTHER_SHARDS or number % MISSING:
                    writer.write({"__key__": key, **{name: sample[name] for name in extensions}})
    (folder / CHUNKS).mkdir()
    if find_spec("litdata"):
        write_litdata(str(folder / CHUNKS), [{"jpg": sample["jpg"]} for sample in samples])
    parquet = _write_parquet(folder / PARQUET, keys, samples, shard_samples) if find_spec("datasets") else []
    if find_spec("megatron"):
        for bucket in (IMAGES, CAPTIONS):
            _prepare_for_energon(folder / bucket)
    clip_bytes = video_bytes = 0
    if video is not None and find_spec("av"):
        clip_bytes, video_bytes = _write_videos(folder, *video)
    return Written(keys, num_shards, parquet, video[0] if video else 0, clip_bytes, video_bytes)


def _caption(source: random.Random) -> bytes:
    text = json.dumps({"caption": ""})
    return text.replace('""', f'"{source.randbytes(JSON_BYTES).hex()[: JSON_BYTES - len(text)]}"').encode()


def _write_parquet(folder: Path, keys: list[str], samples: list[dict[str, bytes]], rows: int) -> list[str]:
    """Files of as many rows as a shard has samples, in row groups of 100, sorted by key."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    for start in range(0, len(keys), rows):
        images = [sample["jpg"] for sample in samples[start : start + rows]]
        table = pa.table({"key": keys[start : start + rows], "jpg": images})
        parquet.write_table(table, folder / f"{start:06d}.parquet", row_group_size=100, compression="none")
    return sorted(path.name for path in folder.iterdir())


def _prepare_for_energon(folder: Path) -> None:
    """As its command asks for it; the samples stay bytes."""
    energon = [str(Path(sys.executable).with_name("energon")), "prepare", "--num-workers", "1"]
    # It writes how the shards are split, then asks for the type of samples, which is written here
    subprocess.run(
        [*energon, str(folder)], input="1,0,0\nn\n", text=True, capture_output=True, check=False, timeout=300
    )
    (folder / ".nv-meta" / "dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\nauto_decode: false\n"
    )
    subprocess.run([*energon, "--tar-index-only", str(folder)], capture_output=True, check=True, timeout=300)


def _write_videos(folder: Path, num_videos: int, seconds: int) -> tuple[int, int]:
    """Write the same video of noise under several keys, one a shard; return the bytes of a clip's frames and of it."""
    import av
    import numpy as np

    width, height = PIXELS
    path = folder / "video.mp4"
    noise = np.random.default_rng(0).integers(0, 255, (8, height, width, 3), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FRAMES_PER_S, options={"preset": "ultrafast", "qp": "34"})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, "yuv420p", FRAMES_PER_S
        for number in range(seconds * FRAMES_PER_S):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise[number % len(noise)], format="rgb24")))
        container.mux(stream.encode())
    data = path.read_bytes()
    path.unlink()
    with tdr.ShardWriter(f"{folder}/{VIDEOS}/{{shard:03d}}.tar", max_shard_samples=1) as writer:
        for number in range(num_videos):
            writer.write({"__key__": f"{number:03d}", "mp4": data})
    return round(CLIP_S * FRAMES_PER_S) * width * height * 3, len(data)
