"""Read and write YAML: plain values, no duplicate keys, texts that every YAML parser reads as texts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from ...errors import JobError
from .field_path import FieldPath

try:
    import yaml  # type: ignore[import-untyped]  # it carries no types
except ImportError as error:
    raise ImportError("Jobs are read and written as YAML: pip install 'torchdata_remote[service]'") from error

_MAX_VALUES, _MAX_LEVELS = 100_000, 60  # of a document; a few lines of aliases could stand for many more
_MAX_INTEGER = 2**1024  # as of a float; Python refuses to print thousands of digits
_MERGE = "tag:yaml.org,2002:merge"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_PLAIN = re.compile(r"[A-Za-z/](?:[\w./-]|:(?=\S))*", re.ASCII)
_NOT_TEXT = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])  # in some YAML parsers


class _Reader(yaml.SafeLoader):  # type: ignore[misc]  # of a library without types
    """Loads plain values. A date is a text, as in Kubernetes; a duplicate key is an error.

    Merge keys copy mappings, and the copies are counted: a few nested ones stand for billions of values.
    """

    _num_merged = 0

    yaml_implicit_resolvers = {  # noqa: RUF012  # it is the base class' table
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and key.value != "<<":
                    raise yaml.composer.ComposerError(None, None, f"the key {key.value!r} occurs twice", key.start_mark)
                seen.add(key.value)
        return node

    def flatten_mapping(self, node: Any) -> None:
        for key, value in node.value:
            if key.tag == _MERGE:
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(merged, yaml.MappingNode):
                        self.flatten_mapping(merged)  # the base class does it too, and finds nothing left to do
                        self._num_merged += 1 + len(merged.value)
                    if self._num_merged > _MAX_VALUES:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"merge keys copy more than {_MAX_VALUES:,} values", key.start_mark
                        )
        super().flatten_mapping(node)


class _Writer(yaml.SafeDumper):  # type: ignore[misc]  # as above
    """Quotes texts that some parser could read as another type: Kubernetes' own knows ``y`` and ``1e3``."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> Any:
        plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT
        style = None if plain else "|" if "\n" in text else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Writer.add_representer(str, _Writer.represent_text)


def read_documents(text: str | bytes, source: str) -> list[tuple[Any, FieldPath]]:
    """Return the documents of a YAML file, each with its path; empty ones are skipped.

    Args:
        text: of the file.
        source: name of the file in errors.

    Raises:
        JobError: if it is not YAML, or has a duplicate key or a value that JSON cannot express.

    Example:
        >>> read_documents("{kind: TrainingJob}", "job.yaml")
        [({'kind': 'TrainingJob'}, FieldPath(source='job.yaml', path=''))]
    """
    try:
        found = [document for document in yaml.load_all(text, Loader=_Reader) if document is not None]
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise JobError(f"{source}: got something else than YAML, expected a TrainingJob: {message}") from error
    fields = [FieldPath(source if len(found) == 1 else f"{source}, document {i}") for i in range(1, len(found) + 1)]
    for document, field in zip(found, fields, strict=True):
        _require_json(document, field, [_MAX_VALUES], _MAX_LEVELS)
    return list(zip(found, fields, strict=True))


def _require_json(value: Any, field: FieldPath, values_left: list[int], levels_left: int) -> None:
    values_left[0] -= 1
    if values_left[0] < 0 or levels_left < 0:
        raise field.wrong(value, f"at most {_MAX_VALUES:,} values, {_MAX_LEVELS} levels deep")
    if isinstance(value, dict):
        for key, one in value.items():
            if not isinstance(key, str):
                raise field.wrong(key, "text for each key: put it into quotes")
            _require_json(one, field.at(key), values_left, levels_left - 1)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            _require_json(one, field.at(number), values_left, levels_left - 1)
    elif isinstance(value, int):
        if abs(value) >= _MAX_INTEGER:
            raise field.wrong(hex(value), "a number of at most 1024 bits")
    elif not isinstance(value, str | None) and not (isinstance(value, float) and math.isfinite(value)):
        raise field.wrong(value, "a text, a number, a truth value, a list or a mapping")


def write_documents(documents: Iterable[dict[str, Any]]) -> str:
    """Write documents as YAML: equal documents give equal text, keys keep their order.

    Example:
        >>> print(write_documents([{"kind": "Job", "value": "1:4"}]), end="")
        ---
        kind: Job
        value: '1:4'
    """
    text: str = yaml.dump_all(documents, Dumper=_Writer, explicit_start=True, sort_keys=False, width=math.inf)
    return text
