"""Some samples of a dataset, samples of two datasets, and seconds of videos; imports are in the functions."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import Job, Peer
from object_peers import OURS

IMAGES, CAPTIONS, OTHER_SHARDS, BOTH = "images", "captions", "other", "both"
PARQUET, CHUNKS, VIDEOS = "parquet", "litdata", "videos"
CLIP_S = 2.0
PERCENT, KINDS = (1, 10, 50), ("random", "clustered")


def _listed(job: Job, bucket: str) -> Any:
    import torchdata_remote as tdr

    return tdr.IterableWrapper([f"s3://{bucket}/index.json"]).list_remote()


def ours_select(job: Job) -> Iterator[int]:
    """The plan, which reads the files of keys, is part of what is measured."""
    selected = _listed(job, IMAGES).select(keys=job.keys)
    return (len(sample["jpg"]) for sample in selected.async_prefetch(max_in_flight=job.in_flight).shard_tar_reader())


def ours_filter(job: Job) -> Iterator[int]:
    """Read everything, and drop what is not wanted."""
    keys = set(job.keys)
    samples = _listed(job, IMAGES).async_prefetch(max_in_flight=job.in_flight).shard_tar_reader()
    return (len(sample["jpg"]) for sample in samples if sample["__key__"] in keys)


def datasets_filter(job: Job) -> Iterator[int]:
    """Hugging Face datasets: rows of Parquet files, streamed, with a filter that pyarrow pushes down."""
    import datasets

    options = {"client_kwargs": {"endpoint_url": job.endpoint_url}}
    files = [f"s3://{PARQUET}/{name}" for name in job.names]
    rows = datasets.load_dataset(
        "parquet",
        data_files=files,
        split="train",
        streaming=True,
        storage_options=options,
        filters=[("key", "in", set(job.keys))],
    )
    return (len(row["jpg"]) for row in rows)


def litdata_subsample(job: Job) -> Iterator[int]:
    """LitData knows no keys: it draws a tenth of its own format by itself. About http:// see ``object_peers``."""
    import litdata
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    dataset = litdata.StreamingDataset(
        f"s3://{CHUNKS}/",
        cache_dir=tempfile.mkdtemp(prefix="litdata-"),
        storage_options={"endpoint_url": job.endpoint_url},
        subsample=0.1,
    )
    return (len(sample["jpg"]) for sample in dataset)


def _pair_bytes(samples: Any) -> Iterator[int]:
    return (len(sample["jpg"]) + len(sample["json"]) for sample in samples)


def ours_both(job: Job) -> Iterator[int]:
    """One shard set that has all members."""
    return _pair_bytes(_listed(job, BOTH).async_prefetch(max_in_flight=job.in_flight).shard_tar_reader())


def _joined(job: Job, images: str, captions: str, **options: Any) -> Iterator[int]:
    import torchdata_remote as tdr

    sets = {"image": f"{images}/index.json", "caption": f"{captions}/index.json"}
    return _pair_bytes(tdr.join(sets, shuffle=False, max_in_flight=job.in_flight or 16, **options))


def ours_join(job: Job) -> Iterator[int]:
    return _joined(job, f"s3://{IMAGES}", f"s3://{CAPTIONS}", align="order")


def ours_join_keys(job: Job) -> Iterator[int]:
    """The captions are in shards of another size, and some are missing."""
    return _joined(job, f"s3://{IMAGES}", f"s3://{OTHER_SHARDS}", how="inner", align="keys")


def ours_both_local(job: Job) -> Iterator[int]:
    import torchdata_remote as tdr

    return _pair_bytes(tdr.stream_shards(f"{job.bucket}/{BOTH}/index.json", shuffle=False))


def ours_join_local(job: Job) -> Iterator[int]:
    return _joined(job, f"{job.bucket}/{IMAGES}", f"{job.bucket}/{CAPTIONS}", align="order")


def energon_join(job: Job) -> Iterator[int]:
    """Energon joins by key what ``energon prepare`` has indexed, here on the local disk; it hands on batches only."""
    from dataclasses import dataclass

    from megatron.energon import DefaultTaskEncoder, Sample, WorkerConfig, get_loader, get_val_dataset

    @dataclass
    class Pair(Sample):  # type: ignore[misc, unused-ignore]  # it carries no types
        image: bytes
        caption: bytes

    def pair(image: dict[str, Any], caption: dict[str, Any]) -> Pair:
        names = ("__key__", "__restore_key__", "__subflavor__", "__subflavors__")
        return Pair(**{name: image[name] for name in names}, image=image["jpg"], caption=caption["json"])

    class Plain(DefaultTaskEncoder):  # type: ignore[misc, unused-ignore]  # it carries no types
        cookers = ()

        def encode_batch(self, batch: Any) -> Any:
            return batch

    globals()["energon_pair"] = pair
    (Path(job.bucket) / "joined.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    join:\n"
        f"      image: {{path: ./{IMAGES}}}\n      caption: {{path: ./{CAPTIONS}}}\n"
        f"    joiner:\n      __module__: {__name__}\n      __function__: energon_pair\n"
    )
    dataset = get_val_dataset(
        f"{job.bucket}/joined.yaml",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=64,
        split_part="train",
        task_encoder=Plain(),
    )
    batches = get_loader(dataset)
    return (len(image) + len(text) for batch in batches for image, text in zip(batch.image, batch.caption, strict=True))


def _clip(file: Any) -> int:
    """The bytes of the frames of two seconds in the middle of a video."""
    import av

    import torchdata_remote as tdr

    with av.open(file) as container:
        begin_s = container.duration / av.time_base / 2
    return tdr.decoders.video(start_s=begin_s, stop_s=begin_s + CLIP_S)(file).nbytes


def ours_clips(job: Job) -> Iterator[int]:
    """Only what the decoder asks for is read."""
    return (_clip(sample["mp4"]) for sample in _listed(job, VIDEOS).shard_tar_reader(lazy={"mp4"}))


def ours_videos(job: Job) -> Iterator[int]:
    """The whole video is read first."""
    samples = _listed(job, VIDEOS).async_prefetch(max_in_flight=job.in_flight).shard_tar_reader()
    return (_clip(io.BytesIO(sample["mp4"])) for sample in samples)


PEERS = {
    **{
        f"ours-select-{percent}-{kind}": Peer(OURS, ours_select, f"select {percent} %, {kind}", "torchdata_remote")
        for percent in PERCENT
        for kind in KINDS
    },
    "ours-filter": Peer(OURS, ours_filter, "50 %, random: read everything and filter", "torchdata_remote"),
    "datasets": Peer(
        ("datasets", "s3fs"), datasets_filter, "10 %, random: Hugging Face datasets, Parquet with a filter", "datasets"
    ),
    "litdata": Peer(
        ("litdata", "obstore"), litdata_subsample, "10 %, random: LitData, its own format, subsample", "litdata"
    ),
    "ours-both": Peer(OURS, ours_both, "one shard set with all members", "torchdata_remote"),
    "ours-join": Peer(OURS, ours_join, "join in order", "torchdata_remote"),
    "ours-join-keys": Peer(OURS, ours_join_keys, "join by keys, other shards, some missing", "torchdata_remote"),
    "ours-both-local": Peer(OURS, ours_both_local, "local: one shard set with all members", "torchdata_remote"),
    "ours-join-local": Peer(OURS, ours_join_local, "local: join in order", "torchdata_remote"),
    "energon-local": Peer(("megatron.energon",), energon_join, "local: Energon, join", "megatron-energon"),
    "ours-clips": Peer((*OURS, "av"), ours_clips, "2 s of each video, lazy", "torchdata_remote"),
    "ours-videos": Peer((*OURS, "av"), ours_videos, "2 s of each video, read whole", "torchdata_remote"),
}
