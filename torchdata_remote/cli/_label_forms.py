"""How a command line tells where labels come from."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from .. import labels
from ..errors import RemoteDataError
from ._options_file import Option, integer, text

LABEL_OPTIONS = (
    Option(
        "labels",
        text,
        "FORM",
        "parent-directory, pattern:REGEX, classes-json:URL, by-number:URL, ground-truth:URL or meta-mat:URL",
    ),
    Option("id_base", integer(0), "N", "the number of a label file's first class"),
    Option("number_base", integer(0), "N", "the number of a label file's first image"),
    Option("base_name", text, "NAME", "what images of a ground truth are called before their eight digits"),
)

_MAKERS = {  # form -> function, options that it needs, and that it may have
    "parent-directory": (labels.parent_directory, (), ()),
    "pattern": (labels.from_pattern, (), ()),
    "classes-json": (labels.classes_json, ("id_base",), ()),
    "by-number": (labels.by_number, ("number_base",), ("id_base",)),
    "ground-truth": (labels.ground_truth, ("base_name",), ("id_base",)),
    "meta-mat": (labels.meta_mat, (), ()),
}


def labeller(options: dict[str, Any], options_of: Callable[[str], Any]) -> labels.Labeller | None:
    """Take the options about labels out, and make of them what they say; ``None`` without them.

    Args:
        options: by name.
        options_of: URL of a label file -> options for its store.

    Raises:
        ArgumentTypeError: for a form that is not known, or options that do not belong to it.
        LabelError: if its file cannot be used.
    """
    given = {option.name: options.pop(option.name) for option in LABEL_OPTIONS if option.name in options}
    said = given.pop("labels", None)
    form, colon, rest = (said or "").partition(":")
    if said is not None and form not in _MAKERS:
        raise argparse.ArgumentTypeError(f"labels: no form {form!r}; there are {', '.join(_MAKERS)}")
    maker, needed, possible = _MAKERS.get(form, (None, (), ()))
    strange = [name for name in given if name not in needed and name not in possible]
    if strange:
        where = f"for --labels {form}" if form else "without --labels"
        raise argparse.ArgumentTypeError(f"{_flag(strange[0])} means nothing {where}")
    lacking = [name for name in needed if name not in given]
    if lacking:
        raise argparse.ArgumentTypeError(f"--labels {form} needs {_flag(lacking[0])}")
    if maker is None:
        return None
    if (form == "parent-directory") == bool(rest):
        expected = "nothing after it" if form == "parent-directory" else "more after its colon"
        raise argparse.ArgumentTypeError(f"labels: {said!r}: expected {expected}")
    if form in ("parent-directory", "pattern"):
        return _made(maker, *([rest] if colon else []))
    return _made(maker, rest, storage_options=options_of(rest), **given)


def _made(maker: Any, *arguments: Any, **options: Any) -> labels.Labeller:
    try:
        made: labels.Labeller = maker(*arguments, **options)
    except RemoteDataError:
        raise
    except (ValueError, re.error) as error:
        raise argparse.ArgumentTypeError(f"labels: {error}") from error
    except ImportError as error:  # of a package that only this form needs
        raise RemoteDataError(f"--labels: {error}") from error
    return made


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
