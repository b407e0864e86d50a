"""Any bytes are samples or an error of this package: inputs that are led by the code's own branches."""

from __future__ import annotations

import base64
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import fuzz_archives

ROOT = Path(__file__).parents[2]


def fuzz(folder: Path, *arguments: str, timeout_s: float) -> None:
    """Run the fuzzer; the error contains the input that broke a reader."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install 'torchdata_remote[test-all]'")
    # Linux counts the memory of the process that starts a program as the program's own peak: a shell's is small.
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    program = [sys.executable, "-m", "tests.support.fuzz_archives", f"--folder={folder}", *arguments]
    done = subprocess.run(
        [*shell, *program], capture_output=True, text=True, timeout=timeout_s, cwd=ROOT, errors="replace"
    )
    reported = re.search(r"INPUT (\S*)", done.stderr)
    crashes = [base64.b64encode(crash.read_bytes()).decode() for crash in folder.glob("*-*")]
    advice = f"python -m tests.support.fuzz_archives --input {reported[1] if reported else (crashes or [''])[0]}"
    assert done.returncode == 0, f"{done.stderr[-3000:]}\nAgain: {advice}"
    assert re.search(r"Done \d+ runs", done.stderr), done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("runs", [500, 1_000_000])
def test_inputs_led_by_coverage_are_samples_or_an_error(tmp_path: Path, runs: int) -> None:
    """Each gives samples or a ``RemoteDataError``."""
    fuzz(tmp_path, f"--runs={runs}", "--seed=1", timeout_s=3500)


@pytest.mark.filterwarnings("ignore:.*links are left out")
def test_seeds_of_the_fuzzer_are_valid_archives() -> None:
    """Otherwise all inputs would fail at the first check."""
    readers = fuzz_archives.Readers()
    seeds = list(fuzz_archives.seeds())
    assert {seed[0] for seed in seeds} == set(range(5))
    assert [readers.read(seed) for seed in seeds] == [None] * len(seeds)
