"""The benchmarks run and print their tables; the figures are not checked. Those with most processes are slow tests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from tests.servers.slow_store import StoreNotInstalledError, nginx_path
from tests.support.paths import ROOT

FOLDER = ROOT / "benchmarks"


@pytest.fixture
def _needs_nginx() -> None:
    try:
        nginx_path()
    except StoreNotInstalledError as error:
        pytest.skip(str(error))


def printed_by(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=FOLDER, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FAILING = """
import report
from measure import PeerMissingError
runs = []
def run_peer(module, name, job, store):
    runs.append(name)
    raise (PeerMissingError if name == "absent" else RuntimeError)("Traceback\\nIndexError: no such shard")
report.run_peer = run_peer
sides = [report.Side(name, name, None, 1, 1) for name in {names}]
print(report.compare("module", sides, None, 1).missing, len(runs))
"""


def test_only_another_project_that_fails_is_run_again() -> None:
    """Twice; one that is not installed is not, and ours fails the run."""
    assert printed_by("-c", FAILING.format(names=["failing"])).endswith("IndexError: no such shard'} 3\n")
    assert printed_by("-c", FAILING.format(names=["absent"])).endswith("} 1\n")
    with pytest.raises(AssertionError, match="no such shard"):
        printed_by("-c", FAILING.format(names=["ours"]))


@pytest.mark.usefixtures("_needs_nginx")
@pytest.mark.parametrize("benchmark", ["bench_objects.py", "bench_shards.py"])
def test_bench_comparison_runs_and_prints_its_table(benchmark: str) -> None:
    """Each side reads every sample, and the table and the ratios are printed."""
    printed = printed_by(benchmark, "--quick", "--peers", "ours-32", "ceiling-32")
    for side in ("torchdata_remote, 32 in flight", "ceiling: obstore in 32 threads"):
        assert re.search(rf"^{side}.* [\d,]+ \([\d,]+ to [\d,]+\) .*[1-9]", printed, re.MULTILINE), printed
    assert "target at least 0.85" in printed


@pytest.mark.usefixtures("_needs_nginx")
def test_bench_stores_runs_and_prints_its_table() -> None:
    """S3 is read plainly, and through TLS and a proxy, if there is one."""
    sides = ("ours-shards-16-s3", "ours-loose-8-s3", "ours-loose-8-company")
    printed = printed_by("bench_stores.py", "--quick", "--peers", *sides)
    for side in ("s3, 16 in flight", "s3, 8 in flight"):
        assert re.search(rf"^torchdata_remote from {side}.* [\d,]+ \([\d,]+ to [\d,]+\) .*[1-9]", printed, re.M), (
            printed
        )
    ratio = re.search(r"^s3 with CA, proxy, SSE-C and requester pays, .* 8 in flight.*: (.*);", printed, re.M)
    assert ratio is not None
    assert (ratio[1] == "not measured") == (shutil.which("squid") is None), printed


@pytest.mark.slow
@pytest.mark.usefixtures("_needs_nginx")
def test_bench_cache_runs_and_prints_costs_and_savings() -> None:
    """First epochs at both latencies, the requests saved in caches of three sizes, the longest step."""
    printed = printed_by("bench_cache.py", "--quick")
    assert len(re.findall(r"first epoch with a cache against none: \d", printed)) == 2
    assert re.findall(r"^  (\d+)% of the data kept: GETs saved in %, by epoch: \d", printed, re.M) == ["25", "50", "80"]
    assert re.search(r"all replaced: longest step \d+ ms", printed)


@pytest.mark.slow
@pytest.mark.usefixtures("_needs_nginx")
def test_bench_loose_files_runs_and_prints_its_table() -> None:
    """Each side reads every file, undecoded and decoded under workers, and the ratios are printed."""
    printed = printed_by("bench_loose_files.py", "--quick", "--peers", "ours-ahead", "plain", "memory")
    for side, num_rows in (("torchdata_remote, Prefetch", 2), ("s3fs open of each file", 2), ("ceiling: decoded", 1)):
        assert len(re.findall(rf"^{side}.* [\d,]+ \([\d,]+ to [\d,]+\) ", printed, re.MULTILINE)) == num_rows, printed
    against_plain = re.findall(
        r"PrefetchingLoader, against the plain dataset: \d.*; target at least (\d+)$", printed, re.M
    )
    assert against_plain == ["40"]
    assert re.search(r"PrefetchingLoader, of decoding from memory: \d.*; target at least 0.85$", printed, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.usefixtures("_needs_nginx")
def test_bench_listing_runs_and_prints_its_tables() -> None:
    """Each side lists every key, and each layout costs a fifth more requests at most."""
    printed = printed_by("bench_listing.py", "--quick")
    for side in ("torchdata_remote, list_remote", "obstore, list", "s3fs, find", "boto3, paginator"):
        assert re.search(rf"^{side} +[\d.]+ \([\d.]+ to [\d.]+\) +[\d.]+ +2\d ", printed, re.MULTILINE), printed
    ratios = re.findall(r"^[a-z\d].*? +2\d +(1\.\d\d) +[\d.]+ +\d+$", printed, re.MULTILINE)
    assert len(ratios) == 10, printed
    assert max(map(float, ratios)) <= 1.2


@pytest.mark.slow
@pytest.mark.usefixtures("_needs_nginx")
def test_bench_training_runs_and_prints_its_table() -> None:
    """Each side delivers every image, and the ratio and the time to the first batch are printed."""
    printed = printed_by("bench_training.py", "--quick", "--peers", "ours", "memory")
    for side in ("torchdata_remote, thread_loader", "ceiling: decode_image"):
        assert len(re.findall(rf"^{side}.* [\d,]+ \([\d,]+ to [\d,]+\) ", printed, re.MULTILINE)) == 1, printed
    assert re.search(r"best of ours, of decoding alone: \d.*; target at least 0.9$", printed, re.MULTILINE)
    assert re.search(
        r"^torchdata_remote, thread_loader, decode_image +[\d.]+ \([\d.]+ to [\d.]+\) +1.00 ", printed, re.M
    )


@pytest.mark.slow
@pytest.mark.usefixtures("_needs_nginx")
def test_bench_storm_runs_and_prints_its_table() -> None:
    """All samples are read correctly through every storm."""
    printed = printed_by("bench_storm.py", "--rounds", "1", "--passes", "1", "--peers", "ours")
    lines = re.findall(r"^torchdata_remote .*$", printed, re.MULTILINE)
    assert len(lines) == 4
    assert all("2,000 of 2,000 samples right, 0 shards raised" in line for line in lines), printed


@pytest.mark.usefixtures("_needs_nginx")
def test_bench_service_runs_and_prints_its_table() -> None:
    """Every byte is read and copied by each side."""
    printed = printed_by("bench_service.py", "--quick")
    for side in ("nginx", "datasets", "disk", "push", "pull"):
        assert len(re.findall(rf"^2.* +{side} +[\d,]+ \([\d,]+ to [\d,]+\) ", printed, re.MULTILINE)) == 1, printed
    assert len(re.findall(r"against (?:nginx|disk): \d", printed)) == 3, printed


def test_bench_datapipe_runs_and_prints_its_table() -> None:
    """A line for each comparison, with both figures and the ratio."""
    printed = printed_by("bench_datapipe.py", "--quick")
    line = r" costs -?[\d.]+ µs instead of [\d.]+: -?[\d.]+x \(-?[\d.]+ to -?[\d.]+\) as .*\n"
    assert re.fullmatch(f"an item{line}a tuple{line}", printed)


def test_bench_decode_runs_and_prints_its_table() -> None:
    """Each side decodes every image, in one thread and in two; what is not installed is named."""
    printed = printed_by("bench_decode.py", "--quick")
    figure = r" +[\d.]+ \([\d.]+ to [\d.]+\)"
    for side in ("decode_image", "Pillow, NumPy", "only decoding all of it, by simplejpeg"):
        assert re.search(rf"^{side}{figure} +[\d,]+{figure}$", printed, re.MULTILINE), printed
    assert re.search(rf"^Pillow, torchvision transforms({figure}| +not installed: )", printed, re.MULTILINE), printed


@pytest.mark.slow
def test_bench_tar_runs_and_prints_its_table() -> None:
    """Each side reads every sample of one size, and this package those of both; the ratios are printed."""
    printed = printed_by(
        "bench_tar.py", "--quick", "--peers", "ours", "ours-views", "walk", "walk-samples", "webdataset"
    )
    assert len(re.findall(r"^torchdata_remote: list_remote.* [\d,]+ \([\d,]+ to [\d,]+\) ", printed, re.MULTILINE)) == 2
    assert re.findall(r"^against WebDataset: \d.*; target at least (\d+)$", printed, re.MULTILINE) == ["10"]
    assert (
        len(re.findall(r"^against the bare walk over samples: \d.*; target at least 0.7$", printed, re.MULTILINE)) == 1
    )


@pytest.mark.slow
def test_bench_writer_runs_and_prints_its_table() -> None:
    """Each side writes every sample of one size, and this package those of both; the ratios are printed."""
    printed = printed_by("bench_writer.py", "--quick", "--peers", "ours", "ours-zstd", "webdataset", "ceiling")
    sides = {
        "torchdata_remote ShardWriter": 2,
        "the same, .tar.zst": 1,
        "WebDataset ShardWriter": 1,
        "ceiling: as many": 1,
    }
    for side, num_rows in sides.items():
        assert len(re.findall(rf"^{side}.* [\d,]+ \([\d,]+ to [\d,]+\) ", printed, re.MULTILINE)) == num_rows, printed
    assert re.findall(r"^against WebDataset: \d.*; target at least (\d+)$", printed, re.MULTILINE) == ["5"]
    assert "against LitData, its own format: not measured; target at least 2.5" in printed


def test_bench_shard_resume_runs_and_prints_its_table() -> None:
    """A job that was killed is resumed to the same manifest, by fewer CPU seconds than the whole job took."""
    printed = printed_by("bench_shard_resume.py", "--quick", "--sources", "tar", "--workers", "0")
    (share,) = re.findall(
        r"^resume of a tar, 0 workers, .*: ([\d.]+) \(.*; target at most 0.15$", printed, re.MULTILINE
    )
    assert 0 < float(share) < 1.5  # small jobs are mostly the start of Python


def test_bench_tables_runs_and_prints_its_table() -> None:
    """With a pickle that does not grow with the table, which the copied one does."""
    printed = printed_by("bench_tables.py", "--quick", "--workers", "1", "--methods", "spawn")
    pickled = dict(re.findall(r"^(one copy for the host|a copy for each worker) .* ([\d,]+)$", printed, re.MULTILINE))
    assert int(pickled["one copy for the host"].replace(",", "")) < 5_000, printed
    assert int(pickled["a copy for each worker"].replace(",", "")) > 3_000_000, printed
    assert re.search(r"^access: [\d,]+ ns, .*; target at most 1.1$", printed, re.MULTILINE), printed


def test_bench_scale_runs_and_prints_its_table() -> None:
    """Over three sizes, messages to workers do not grow, the listing and the states by 16 at most."""
    printed = printed_by("bench_scale.py", "--quick")
    rows = re.findall(r"^(.*?)  +[\d.,]+  +[\d.,]+  +[\d.,]+  +([\d,]+)x$", printed, re.MULTILINE)
    growth = {what: int(ratio) for what, ratio in rows}
    assert len(growth) == 17, printed
    assert growth["listing handed on: size, MB"] <= 16
    assert growth["state of all ranks, MB"] <= 16
    assert growth["state of a rank, kB"] == growth["state and chain sent to a worker, kB"] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("_needs_nginx")
def test_bench_defaults_runs_and_prints_its_table() -> None:
    """Each value reads every sample, and the default is compared with the order of earlier releases."""
    printed = printed_by("bench_defaults.py", "--quick", "--peers", "default", "shards-only", "files")
    assert len(re.findall(r"^(?:shards|shuffle|loose).* [\d,]+ \([\d,]+ to [\d,]+\) ", printed, re.MULTILINE)) == 3, (
        printed
    )
    assert "target at least 0.8" in printed


def test_bench_shuffle_quality_runs_and_prints_its_table(tmp_path: Path) -> None:
    """Each method hands out each sample once, a full shuffle is the measure, and a picture is drawn where it can be."""
    picture = tmp_path / "quality.png"
    plot = ("--plot", str(picture)) if find_spec("matplotlib") else ()
    printed = printed_by("shuffle_quality.py", "--quick", *plot)
    ratios = re.findall(r"^(.*?)  +([01]\.\d{3}) \(.* to .*\) .*[\d.-]+$", printed, re.MULTILINE)
    assert len(ratios) == 8, printed
    assert ratios[-1] == ("full shuffle", "1.000")
    found = {name: float(ratio) for name, ratio in ratios}
    assert found['shuffle="shards"'] < found["interleave 8 + buffer 500"] < found["default"]
    if plot:
        with Image.open(picture) as image:
            assert image.width > 1_000


@pytest.mark.slow
@pytest.mark.usefixtures("_needs_nginx")
def test_bench_resume_runs_and_prints_its_table() -> None:
    """Both resume with the next batch, this package also without workers; bytes read again are below their bound."""
    printed = printed_by("bench_resume.py", "--quick")
    for loader, workers in (("stateful_loader", ["0", "2"]), ("StatefulDataLoader over WebDataset", ["2"])):
        rows = re.findall(rf"^{loader} +([02]) +90% +[\d.]+ \([\d.]+ to [\d.]+\) +\d+ ", printed, re.MULTILINE)
        assert rows == workers, printed
    again = re.findall(r"read again, of two buffers .*: ([\d.]+) \(.*; target at most 1$", printed, re.MULTILINE)
    assert len(again) == 2, printed
    assert all(float(ratio) <= 1 for ratio in again), printed


@pytest.mark.slow
def test_bench_loaders_prints_the_way_of_a_batch() -> None:
    """For each type of images, written into the batch and stacked, from each loader."""
    printed = printed_by("bench_loaders.py", "--quick", "--only", "way")
    rows = re.findall(
        r"^(uint8|float32), (?:stacked|written into the batch)( +\d+\.\d\d ms){3}$", printed, re.MULTILINE
    )
    assert len(rows) == 4, printed


def test_bench_local_files_runs_and_prints_its_table() -> None:
    """The ratio of ours against plain Python."""
    printed = printed_by("bench_local_files.py", "--quick", "--peers", "plain", "stream-files")
    assert re.search(r"^stream_files, CPU against open and read: \d+\.\d+", printed, re.MULTILINE)


def test_bench_items_runs_and_prints_its_table() -> None:
    """Each side reads every sample once; what is not installed is named."""
    printed = printed_by(
        "bench_items.py", "--quick", "--peers", "ours-one", "ours-mix", "ours-schedule", "datasets-mix"
    )
    for side in ("all shards in one chain", "mix of two chains", "mix by a schedule of ten phases"):
        assert re.search(rf"^torchdata_remote, {side} +[\d,]+ \([\d,]+ to [\d,]+\) ", printed, re.MULTILINE), printed
    assert re.search(r"^mix, CPU against all shards in one chain: \d+\.\d+", printed, re.MULTILINE), printed
    assert re.search(r"^mix by a schedule, CPU against constant weights: \d+\.\d+", printed, re.MULTILINE), printed
    if find_spec("datasets") is None:
        assert re.search(
            r"interleave_datasets of two +not measured: No module named 'datasets'$", printed, re.MULTILINE
        )
