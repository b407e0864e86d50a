"""Write ``docs/cli.md`` from the signatures and docstrings of the commands.

python .ci/make_cli.py            write the page
python .ci/make_cli.py --check    exit with 1 if the page differs from what would be written
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path
from typing import Any

from torchdata_remote.cli.app import COMMANDS, app

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"

HEAD = """# Command line

`torchdata-remote` lists, prepares, checks, shows, measures and hosts datasets. Where no scripts are installed, run
`python -m torchdata_remote`.

URLs are those of the Python API: `s3://bucket/path/`, `datasets://host:port/name/`, `https://host/path`, `memory://` or a
local path; globs and brace ranges where a source is read. Credentials come from the environment (see
[S3 and compatible stores](stores/s3.md)) or from `--storage-options`.

Every command takes its arguments from files, too: `-c FILE`, or `--conf FILE`, any number of times. A file is TOML, or JSON if its
name ends in `.json`, with the names below in snake_case. Of several files the last one takes precedence, and the command line over all.
A flag has an opposite: `--no-resume`, `--no-quiet`.

```toml
source = "photos/"
template = "s3://bucket/train/{shard:06d}.tar"
max_shard_bytes = 100_000_000
storage_options = {endpoint_url = "http://host:9000"}
```

| exit status | meaning |
|---|---|
| 0 | the command succeeded |
| 1 | the data or the store has a fault; standard error has the message, which is that of an [error class](errors/index.md) |
| 2 | the command line is wrong |
| 130 | interrupted by Ctrl-C |
"""


def page() -> str:
    """The whole page as Markdown."""
    lines = [HEAD, "| command | what it does |", "|---|---|"]
    lines += [f"| [`{one.__name__}`](#{one.__name__}) | {_cell(_paragraphs(one)[0])} |" for one in COMMANDS]
    for one in COMMANDS:
        lines += ["", *section(one)]
    return "\n".join([*lines, ""])


def section(command: Any) -> list[str]:
    """The part of the page about one command."""
    name, (summary, *rest) = command.__name__, _paragraphs(command)
    example = next(text for text in rest if text.startswith("example: "))
    lines = [f"## {name}", "", " ".join([summary, *(text for text in rest if text != example)]), ""]
    arguments = list(app[name].assemble_argument_collection(parse_docstring=True))
    by_place = [one for one in arguments if one.field_info.kind is not inspect.Parameter.KEYWORD_ONLY]
    usage = " ".join(["torchdata-remote", name, *(_upper(one) for one in by_place), "[options]"])
    lines += ["```text", usage, "```", "", "| argument | meaning |", "|---|---|"]
    for one in arguments:
        forms = sorted(
            (form for form in one.names if not form.startswith("--no-") or one.field_info.default is True), key=len
        )
        shown = f"`{_upper(one)}`" if one in by_place else ", ".join(f"`{form}`" for form in forms)
        needed = " (required)" if one.required and one not in by_place else ""
        lines.append(f"| {shown}{needed} | {_cell((one.parameter.help or '') + _more(one))} |")
    return [*lines, "", "```bash", example.removeprefix("example: "), "```"]


def _upper(argument: Any) -> str:
    return str(argument.names[0].lstrip("-").upper())


def _more(argument: Any) -> str:
    """The values of a choice, and the default."""
    choices, default = argument.get_choices(), argument.field_info.default
    notes = [f"one of {', '.join(choices)}"] if choices else []
    if default not in (inspect.Parameter.empty, None, False, True, ()):
        notes.append(f"default: {default:,}" if isinstance(default, int) else f"default: {default}")
    return f" ({'; '.join(notes)})" if notes else ""


def _paragraphs(command: Any) -> list[str]:
    """The docstring without its arguments."""
    text = inspect.getdoc(command).partition("\nArgs:")[0]
    return [" ".join(part.split()) for part in text.strip().split("\n\n")]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the page about the command line.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args()
    wanted = page()
    if not options.check:
        PAGE.write_text(wanted)
    elif not PAGE.exists() or PAGE.read_text() != wanted:
        print("docs/cli.md is out of date: run python .ci/make_cli.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
