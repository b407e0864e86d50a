"""Measure what the tests notice: 120 small mutants of the package, each against the tests that reach it.

Usage: python .ci/mutants.py list                             # choose the mutants (seed 0) and write .ci/mutants.json
       python .ci/mutants.py reach FOLDER                     # run all tests once, to see which reach which mutant
       python .ci/mutants.py run FOLDER [--without PATH] [--share K/N]   # run the tests of mutants without a result
       python .ci/mutants.py score FOLDER [--without PATH]    # the result, and the mutants that no test noticed

``FOLDER`` keeps what was measured; a run that was stopped continues. A mutant is killed when one of its tests fails,
and survives when none did within 120 s. ``--without tests/internal`` leaves out a folder, in results of their own;
``--share 0/2`` and ``--share 1/2``, at the same time, take half of the mutants each.
The tests run in a copy of the working tree, with this interpreter. ``list`` needs running again only where the package
has changed: ``run`` refuses a mutant whose code is not where it was.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate, chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "torchdata_remote"
LIST = ROOT / ".ci" / "mutants.json"
NUM_MUTANTS, SEED, LIMIT_S = 120, 0, 120
BATCHES = (30, 300, 100_000)  # tests of one pytest process, the most specific ones first
KINDS = ("compare", "arithmetic", "boundary", "deleted", "branch")
COMPARED: dict[type, str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
    ast.Lt: ">", ast.LtE: ">", ast.Gt: "<", ast.GtE: "<",
}  # fmt: skip
BOUNDARY: dict[type, str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
ARITHMETIC: dict[type, str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.Mod: "//",
}
DELETED = (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)
NOT_WITHIN = (ast.Raise, ast.JoinedStr, ast.arguments, ast.AnnAssign, ast.Import, ast.ImportFrom)

# Written into the copy in place of this package's tests' plugin; `{folder}` is where reached tests are recorded
PROBE = '''
"""Which test reaches which mutant, in any process: pytest names the test in the environment."""

import os

SEEN = set()
OPEN, WRITE, CLOSE = os.open, os.write, os.close  # tests replace them


def _append(name, line):
    try:
        file = OPEN(os.path.join({folder!r}, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        WRITE(file, (line + "\\n").encode("utf-8", "backslashreplace"))
        CLOSE(file)
    except OSError:  # some tests limit the size of files
        pass


def reached(mutant):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if (mutant, test) not in SEEN:
        SEEN.add((mutant, test))
        _append(str(mutant), test)


def pytest_runtest_logreport(report):
    _append("durations", f"{{report.duration}} {{report.nodeid}}")
'''


@dataclass(frozen=True)
class Mutant:
    """One change of the package's source.

    Args:
        file: below the repository.
        line: of the change, from 1.
        start: of the replaced text, in characters from the beginning of the file.
        old: the replaced text.
        new: what stands there instead.
        kind: one of ``KINDS``.
        statement_line: of the statement that contains it, from 1.
    """

    file: str
    line: int
    start: int
    old: str
    new: str
    kind: str
    statement_line: int

    def applied(self, source: str) -> str:
        """Return the changed source."""
        end = self.start + len(self.old)
        if source[self.start : end] != self.old:
            raise SystemExit(f"{self.file}:{self.line} is no longer {self.old!r}: run `list` again")
        return source[: self.start] + self.new + source[end:]


# --- the list


class Source:
    """The mutants of a file: of code in functions, without messages of errors and annotations.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.name, self.text = str(path.relative_to(ROOT)), path.read_text()
        self._lines = self.text.splitlines(keepends=True)
        self._starts = [0, *accumulate(map(len, self._lines))]

    def mutants(self) -> Iterator[Mutant]:
        """Yield each mutant; one of a nested function twice."""
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for statement in node.body:
                    if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                        yield from self._visit(statement, statement)

    def _visit(self, node: ast.AST, statement: ast.stmt) -> Iterator[Mutant]:
        if isinstance(node, ast.stmt) and not self._lines[node.lineno - 1].lstrip().startswith("elif"):
            statement = node
        for kind, (start, end), new in chain(self._compared(node), self._computed(node), self._branched(node)):
            line = self.text.count("\n", 0, start) + 1
            yield Mutant(self.name, line, start, self.text[start:end], new, kind, statement.lineno)
        if not isinstance(node, NOT_WITHIN):
            for child in ast.iter_child_nodes(node):
                yield from self._visit(child, statement)

    def _compared(self, node: ast.AST) -> Iterator[tuple[str, tuple[int, int], str]]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            place, operator = self._between(node.left, node.comparators[0]), type(node.ops[0])
            if operator in COMPARED:
                yield "compare", place, COMPARED[operator]
            if operator in BOUNDARY:
                yield "boundary", place, BOUNDARY[operator]

    def _computed(self, node: ast.AST) -> Iterator[tuple[str, tuple[int, int], str]]:
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            if not any(_is_text(side) for side in (node.left, node.right)):
                yield "arithmetic", self._between(node.left, node.right), ARITHMETIC[type(node.op)]
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield "boundary", self._span(node), str(node.value + 1)

    def _branched(self, node: ast.AST) -> Iterator[tuple[str, tuple[int, int], str]]:
        if isinstance(node, DELETED) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            yield "deleted", self._span(node), "pass"
        elif isinstance(node, (ast.If, ast.IfExp)):
            start, end = self._span(node.test)
            yield "branch", (start, end), f"(not ({self.text[start:end]}))"
        elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
            yield "branch", self._between(*node.values), "or" if isinstance(node.op, ast.And) else "and"

    def _offset(self, line: int, column: int) -> int:
        """Return the place in the text; ``ast`` counts columns in bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end = self._offset(node.end_lineno or 0, node.end_col_offset or 0)
        return self._offset(node.lineno, node.col_offset), end

    def _between(self, left: ast.expr, right: ast.expr) -> tuple[int, int]:
        """Return the place of the operator between two expressions, without spaces and brackets around it."""
        start, end = self._span(left)[1], self._span(right)[0]
        operator = self.text[start:end].strip(" \n()")
        start = self.text.index(operator, start)
        return start, start + len(operator)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def num_tokens(path: Path) -> int:
    """Return the number of tokens, which is a room's share of the mutants."""
    return sum(1 for _ in tokenize.generate_tokens(io.StringIO(path.read_text()).readline))


def choose() -> list[Mutant]:
    """Choose the mutants: rooms by their sizes, kinds by turns, one in each file as far as there are enough."""
    rooms: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / PACKAGE).parts
        rooms[parts[0] if len(parts) > 1 else "."].append(path)
    sizes = {room: sum(map(num_tokens, paths)) for room, paths in rooms.items()}
    exact = {room: NUM_MUTANTS * size / sum(sizes.values()) for room, size in sizes.items()}
    counts = {room: int(share) for room, share in exact.items()}
    for room in sorted(rooms, key=lambda room: counts[room] - exact[room])[: NUM_MUTANTS - sum(counts.values())]:
        counts[room] += 1
    draw = random.Random(SEED)
    chosen: list[Mutant] = []
    for room, paths in rooms.items():
        by_kind: dict[str, list[Mutant]] = defaultdict(list)
        for mutant in sorted(
            {m for path in paths for m in Source(path).mutants()}, key=lambda m: (m.file, m.start, m.kind)
        ):
            by_kind[mutant.kind].append(mutant)
        used: Counter[str] = Counter()
        for number in range(counts[room]):
            among = by_kind[KINDS[(len(chosen)) % len(KINDS)]]
            fewest = min((used[m.file] for m in among), default=0)
            among = [m for m in among if used[m.file] == fewest]
            if not among:
                raise SystemExit(f"{room} has no mutant number {number}")
            chosen.append(draw.choice(among))
            used[chosen[-1].file] += 1
    return chosen


# --- the runs


def copy_tree(folder: Path) -> Path:
    """Copy what git has, and uncommitted files, to ``folder``."""
    names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, text=True)
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def pytest(tree: Path, *arguments: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str] | None:
    """Run pytest in a copy of the tree; ``None`` if the time was not enough."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(command, process.returncode, output)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)  # with what a test has left
        process.wait()


def reach(folder: Path, mutants: list[Mutant]) -> None:
    """Run all tests, a folder of them after the other, with a probe before the statement of each mutant."""
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "done"
    done.touch()
    with tempfile.TemporaryDirectory() as temporary:
        tree = copy_tree(Path(temporary))
        (tree / PACKAGE / "_reach.py").write_text(PROBE.format(folder=str(folder.resolve())))
        probes: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, mutant in enumerate(mutants):
            probes[mutant.file].append((mutant.statement_line, number))
        for file, places in probes.items():
            lines = (tree / file).read_text().splitlines()
            for line, number in sorted(places, reverse=True):
                text = lines[line - 1]
                indent = text[: len(text) - len(text.lstrip())]
                call = f'__import__("{PACKAGE}._reach", fromlist=["reached"]).reached({number})'
                lines.insert(line - 1, indent + call)
            (tree / file).write_text("\n".join(lines) + "\n")
        tests = sorted({path.relative_to(tree).parts[:2] for path in (tree / "tests").rglob("test_*.py")})
        for place in map("/".join, tests):
            if place not in done.read_text().splitlines():
                result = pytest(tree, place, "-n", "3", "--dist", "loadfile", "-p", f"{PACKAGE}._reach")
                assert result is not None
                with (folder / "output.txt").open("a") as output:
                    output.write(result.stdout)
                with done.open("a") as names:
                    names.write(f"{place}\n")
                print(place, result.stdout.splitlines()[-1], flush=True)


class Reached:
    """The tests that reach each mutant, and their durations.

    Args:
        folder: of ``reach``.
        without: start of the tests that do not count, or nothing.
    """

    def __init__(self, folder: Path, without: str) -> None:
        self.duration_s: dict[str, float] = defaultdict(float)
        for line in (folder / "durations").read_text(errors="replace").splitlines():
            duration, _, test = line.partition(" ")
            self.duration_s[test] = max(self.duration_s[test], float(duration))
        self.tests: dict[int, set[str]] = {}
        for number in range(NUM_MUTANTS):
            file = folder / str(number)
            names = set(file.read_text(errors="replace").splitlines()) if file.exists() else set()
            names &= self.duration_s.keys()  # not those of fixtures that outlive a test
            self.tests[number] = {name for name in names if not (without and name.startswith(without))}
        self.num_mutants = Counter(test for tests in self.tests.values() for test in tests)

    def in_order(self, number: int) -> list[str]:
        """Return the tests of a mutant: short ones that reach few mutants first."""
        return sorted(
            self.tests[number], key=lambda test: ((0.01 + self.duration_s[test]) * self.num_mutants[test], test)
        )


def try_one(tree: Path, mutant: Mutant, tests: list[str]) -> tuple[str, str]:
    """Return whether the tests notice a mutant, and the first that fails."""
    path = tree / mutant.file
    source = path.read_text()
    path.write_text(mutant.applied(source))
    end, first = time.monotonic() + LIMIT_S, 0
    try:
        for size in BATCHES:
            batch, first = tests[first : first + size], first + size
            if not batch:
                return "survived", "all of its tests passed"
            (tree / "tests.txt").write_text("\n".join(batch) + "\n")
            left_s = end - time.monotonic()
            result = pytest(tree, "-x", "-n", "0", "--timeout", "60", "@tests.txt", timeout_s=max(1, left_s))
            if result is None:
                return "survived", f"no failure in {LIMIT_S} s"
            if "ERROR: not found: " in result.stdout:
                raise SystemExit(
                    result.stdout[-2000:] + "\nThe tests have changed: measure `reach` again, in a new folder"
                )
            if result.returncode:
                failed = [line for line in result.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return "killed", (failed or result.stdout.splitlines()[-3:] or [""])[0][:300]
        return "survived", "all of its tests passed"
    finally:
        path.write_text(source)


def run(folder: Path, results: Path, without: str, share: str, mutants: list[Mutant]) -> None:
    """Try each mutant of a share that has no result, and append what came of it."""
    done = {json.loads(line)["number"] for line in results.read_text().splitlines()} if results.exists() else set()
    reached = Reached(folder, without)
    first, _, num_shares = share.partition("/")
    with tempfile.TemporaryDirectory() as temporary:
        tree = copy_tree(Path(temporary))
        for number, mutant in enumerate(mutants):
            if number in done or number % int(num_shares) != int(first):
                continue
            start = time.monotonic()
            outcome, why = try_one(tree, mutant, reached.in_order(number))
            row = {"number": number, "outcome": outcome, "s": round(time.monotonic() - start, 1), "why": why}
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(number, outcome, row["s"], f"{mutant.file}:{mutant.line}", why, flush=True)


def score(results: Path, mutants: list[Mutant]) -> None:
    """Print the share that was noticed, and each mutant that was not."""
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    killed = sum(row["outcome"] == "killed" for row in rows)
    for row in rows:
        if row["outcome"] != "killed":
            mutant = mutants[row["number"]]
            change = f"{mutant.old[:60]!r} -> {mutant.new[:60]!r}"
            print(f"{row['number']:3} {mutant.file}:{mutant.line} {change}: {row['why']}")
    print(f"{killed} of {len(rows)} mutants killed ({100 * killed / max(1, len(rows)):.1f} %)")


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["list", "reach", "run", "score"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--without", default="", metavar="PATH")
    parser.add_argument("--share", default="0/1", metavar="K/N")
    options = parser.parse_args()
    if options.command == "list":
        LIST.write_text("[\n" + ",\n".join(json.dumps(asdict(mutant)) for mutant in choose()) + "\n]\n")
        return
    mutants = [Mutant(**row) for row in json.loads(LIST.read_text())]
    results = options.folder / f"results{options.without.replace('/', '-')}.jsonl"
    if options.command == "reach":
        reach(options.folder, mutants)
    elif options.command == "run":
        run(options.folder, results, options.without, options.share, mutants)
    else:
        score(results, mutants)


if __name__ == "__main__":
    main()
