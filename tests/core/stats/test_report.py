"""Statistics of chains that run."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from torchdata_remote.core.stats.counters import StageStats
from torchdata_remote.core.stats.report import Stats, stats
from torchdata_remote.testing import FaultyStore

NUM_FILES, FILE_BYTES = 30, 2_000


@pytest.fixture
def files(moto: S3Server) -> str:
    """The URL of some files."""
    bucket = moto.new_bucket()
    for number in range(NUM_FILES):
        moto.client().put_object(Bucket=bucket, Key=f"f/{number}.txt", Body=b"x" * FILE_BYTES)
    return f"s3://{bucket}/f/"


def test_stats_count_a_chain_over_files(files: str, moto: S3Server) -> None:
    """Items, bytes and requests are those of the chain; waiting and the rest make up the time."""
    pipe = IterableWrapper([files]).list_remote(storage_options=moto.storage_options)
    chain = pipe.async_prefetch(storage_options=moto.storage_options).file_reader().decode_sample()
    before = stats()
    assert len(list(chain)) == NUM_FILES
    did = chain.stats() - before
    assert (did.list.items, did.fetch.items, did.decode.items) == (NUM_FILES, NUM_FILES, NUM_FILES)
    assert did.fetch.num_bytes == did.decode.num_bytes == NUM_FILES * FILE_BYTES
    assert (did.fetch.requests, did.fetch.retries) == (NUM_FILES, 0)
    assert did.list.requests >= 1
    assert did.fetch.busy_s > 0
    waited_s = did.list.wait_s + did.fetch.wait_s + did.read.wait_s + did.decode.wait_s
    assert waited_s + did.rest_s == pytest.approx(did.elapsed_s)


def test_retries_are_counted(files: str, moto: S3Server) -> None:
    """Requests that failed and were repeated count; bytes count when they arrive."""
    with FaultyStore(moto.endpoint_url) as broken:
        options = {**moto.storage_options, "endpoint_url": broken.endpoint_url}
        urls = list(IterableWrapper([files]).list_remote(storage_options=options))
        broken.script("internal_error", "reset", "early_end")
        before = stats()
        policy = tdr.RetryPolicy(first_wait_s=0)
        dataset = tdr.RemoteFiles(files, index=urls, storage_options=options, retry=policy)
        assert len(dataset.__getitems__(list(range(NUM_FILES)))) == NUM_FILES
        did = stats() - before
    assert (did.fetch.requests, did.fetch.retries) == (NUM_FILES + 3, 3)
    assert did.fetch.num_bytes == NUM_FILES * FILE_BYTES


def test_shards_are_read(memory_folder: str) -> None:
    """Samples count at the reader, also when it is left early."""
    with tdr.ShardWriter(f"{memory_folder}/{{shard}}.tar") as writer:
        for number in range(40):
            writer.write({"__key__": str(number), "txt": "text"})
    before = stats()
    source = iter(tdr.stream_shards(memory_folder, shuffle=False))
    for _ in range(10):
        next(source)
    del source
    assert (stats() - before).read.items == 10


def test_the_longest_wait_is_the_bottleneck() -> None:
    """Or the rest, which is everything after the stages."""
    none = StageStats()
    assert Stats(10, none, StageStats(wait_s=6), none, StageStats(wait_s=1, busy_s=30)).bottleneck == "fetch"
    assert Stats(10, none, StageStats(wait_s=2), none, StageStats(wait_s=1, busy_s=30)).bottleneck == "rest"


def test_str_of_stats_has_a_line_for_each_stage() -> None:
    """A line for each stage, with its part of the time."""
    did = Stats(8, StageStats(), StageStats(1000, 2_000_000, 4.0, 9.5, 1001, 1), StageStats(), StageStats())
    lines = str(did).splitlines()
    assert [line.split()[0] for line in lines] == ["stage", "list", "fetch", "read", "decode", "rest"]
    assert lines[2].split() == ["fetch", "1,000", "2.0", "4.00", "50%", "9.50", "1,001", "1"]
    assert lines[5].split() == ["rest", "4.00", "50%"]
    assert {len(line) for line in lines[:5]} == {len(lines[0])}


def test_scalars_are_rates_and_shares() -> None:
    """Under one prefix; samples are those of the reader, otherwise decoded values, otherwise objects."""
    fetch = StageStats(items=20, num_bytes=6_000_000, wait_s=5, busy_s=30, requests=20, retries=2)
    did = Stats(10, StageStats(requests=10, wait_s=1), fetch, StageStats(items=400, wait_s=2), StageStats())
    assert did.as_scalars("s/") == pytest.approx(
        {
            "s/samples_per_s": 40,
            "s/megabytes_per_s": 0.6,
            "s/requests_per_s": 3,
            "s/retries_per_s": 0.2,
            "s/waiting": 0.8,
            "s/waiting_list": 0.1,
            "s/waiting_fetch": 0.5,
            "s/waiting_read": 0.2,
            "s/waiting_decode": 0,
        }
    )
    none = StageStats()
    assert Stats(10, none, fetch, none, StageStats(items=30)).samples == 30
    assert Stats(10, none, fetch, none, none).samples == 20
    assert set(Stats(0, none, none, none, none).as_scalars().values()) == {0}


def test_scalars_go_to_tensorboard(tmp_path: Path) -> None:
    """The recipe of the manual: three lines, and the event file has each name."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    before = stats()
    with SummaryWriter(tmp_path) as writer:
        for step in (1, 2):
            for name, value in (stats() - before).as_scalars().items():
                writer.add_scalar(name, value, step)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == set(before.as_scalars())
    assert [event.step for event in events.Scalars("data/waiting_fetch")] == [1, 2]
