"""The options about labels."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from ..errors import RemoteDataError
from ..formats import labels
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
    Option("base_name", text, "NAME", "prefix of the image names of a ground truth, before the eight digits"),
)

_MAKERS = {  # form -> function, required options, optional ones
    "parent-directory": (labels.parent_directory, (), ()),
    "pattern": (labels.from_pattern, (), ()),
    "classes-json": (labels.classes_json, ("id_base",), ()),
    "by-number": (labels.by_number, ("number_base",), ("id_base",)),
    "ground-truth": (labels.ground_truth, ("base_name",), ("id_base",)),
    "meta-mat": (labels.meta_mat, (), ()),
}


def labeller(options: dict[str, Any], options_of: Callable[[str], Any]) -> labels.Labeller | None:
    """Remove the options about labels and make the labeller that they describe; ``None`` without them.

    Args:
        options: by name.
        options_of: URL of a label file -> options for its store.

    Raises:
        ArgumentTypeError: for an unknown form, or options that do not belong to it.
        LabelError: if the label file cannot be used.
    """
    arguments = {option.name: options.pop(option.name) for option in LABEL_OPTIONS if option.name in options}
    value = arguments.pop("labels", None)
    form, colon, rest = (value or "").partition(":")
    if value is not None and form not in _MAKERS:
        raise argparse.ArgumentTypeError(f"labels: unknown form {form!r}; known forms are {', '.join(_MAKERS)}")
    maker, required, optional = _MAKERS.get(form, (None, (), ()))
    unused = [name for name in arguments if name not in required and name not in optional]
    if unused:
        context = f"with --labels {form}" if form else "without --labels"
        raise argparse.ArgumentTypeError(f"{_flag(unused[0])} has no effect {context}")
    missing = [name for name in required if name not in arguments]
    if missing:
        raise argparse.ArgumentTypeError(f"--labels {form} needs {_flag(missing[0])}")
    if maker is None:
        return None
    if (form == "parent-directory") == bool(rest):
        expected = "no colon" if form == "parent-directory" else "a value after the colon"
        raise argparse.ArgumentTypeError(f"labels: {value!r}: expected {expected}")
    if form in ("parent-directory", "pattern"):
        return _make(maker, *([rest] if colon else []))
    return _make(maker, rest, storage_options=options_of(rest), **arguments)


def _make(maker: Any, *arguments: Any, **options: Any) -> labels.Labeller:
    try:
        labeller: labels.Labeller = maker(*arguments, **options)
    except RemoteDataError:
        raise
    except (ValueError, re.error) as error:
        raise argparse.ArgumentTypeError(f"labels: {error}") from error
    except ImportError as error:  # of an optional package
        raise RemoteDataError(f"--labels: {error}") from error
    return labeller


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
