"""Write ``docs/cli.md`` from the parsers of the command line.

    python .ci/make_cli.py            write the page
    python .ci/make_cli.py --check    exit with 1 if the page differs from what would be written

The tables are made from the parsers' actions rather than from ``--help``, whose layout depends on the Python version.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchdata_remote.cli import _commands

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"

HEAD = """# Command line

`torchdata-remote` lists, prepares, checks, shows, measures and hosts datasets. Where no scripts are installed, run
`python -m torchdata_remote`.

URLs are those of the Python API: `s3://bucket/path/`, `datasets://host:port/name/`, `https://host/path`, `memory://` or a
local path; globs and brace ranges where a source is read. Credentials come from the environment (see
[S3 and compatible stores](stores/s3.md)) or from `--storage-options`.

| exit status | meaning |
|---|---|
| 0 | the command succeeded |
| 1 | the data or the store has a fault; standard error has the message, which is that of an [error class](errors/index.md) |
| 2 | the command line is wrong |
| 130 | interrupted by Ctrl-C |
"""


def page() -> str:
    """The whole page as Markdown."""
    commands = parsers()
    lines = [HEAD, "| command | what it does |", "|---|---|"]
    lines += [f"| [`{name}`](#{name}) | {_cell(summary)} |" for name, (summary, _) in commands.items()]
    for name, (_, parser) in commands.items():
        lines += ["", *section(name, parser)]
    return "\n".join([*lines, ""])


def parsers() -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Command -> its summary and its parser."""
    parser = _commands.build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    summaries = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    return {name: (summaries[name], parser) for name, parser in commands.choices.items()}


def section(name: str, parser: argparse.ArgumentParser) -> list[str]:
    """The part of the page about one command."""
    lines = [f"## {name}", "", _text(parser, parser.description or ""), ""]
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
    positional = [action for action in actions if not action.option_strings]
    options = [action for action in actions if action.option_strings]
    usage = " ".join([f"torchdata-remote {name}", *(_named(action) for action in positional)])
    lines += ["```text", usage + (" [options]" if options else ""), "```", ""]
    lines += ["| argument | meaning |", "|---|---|"]
    for action in [*positional, *options]:
        required = " (required)" if action.option_strings and action.required else ""
        lines.append(f"| {_shown(action)}{required} | {_cell(_help(parser, action))} |")
    if parser.epilog:
        example = _text(parser, parser.epilog).removeprefix("example:").strip()
        lines += ["", "```bash", example, "```"]
    return lines


def _named(action: argparse.Action) -> str:
    return str(action.metavar or action.dest).upper()


def _shown(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{_named(action)}`"
    if action.nargs == 0:
        return ", ".join(f"`{option}`" for option in action.option_strings)
    value = str(action.metavar or action.dest.upper())
    forms = [f"{option} {value}" for option in action.option_strings]
    # a pipe ends a table's cell, also in backticks
    return ", ".join(f"<code>{form.replace('|', '&#124;')}</code>" if "|" in form else f"`{form}`" for form in forms)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _text(parser: argparse.ArgumentParser, text: str) -> str:
    return " ".join(text.replace("%(prog)s", parser.prog).replace("%%", "%").split())


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
