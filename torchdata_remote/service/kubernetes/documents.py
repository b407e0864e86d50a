"""Read and write YAML strictly, and name the field that is wrong. PyYAML is in the extra ``[service]``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from ...errors import JobError

try:
    import yaml  # type: ignore[import-untyped]  # it carries no types
except ImportError as error:
    raise ImportError("Jobs are read and written as YAML: pip install 'torchdata_remote[service]'") from error

_WORD = re.compile(r"\w+")
_MAX_SHOWN = 100  # characters of a value in an error
_MAX_ALIASES = 30  # of a document: however they are nested, they stand for at most 62,000 values, e**(30/e)
_TEXT, _MERGE, _TIMESTAMP = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge", "tag:yaml.org,2002:timestamp"
_PLAIN = re.compile(r"[A-Za-z/](?:[\w./-]|:(?=\S))*", re.ASCII)
_NOT_TEXT = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])  # in some YAML parsers
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


class Field(NamedTuple):
    """A field of a document, and its path: ``file: spec.containers[0]``.

    Example:
        >>> print(Field("job.yaml", "", {"a": [3]}).at("a").elements()[0].wrong("a mapping"))
        job.yaml: a[0]: got 3, expected a mapping.
    """

    source: str
    path: str
    value: Any

    def at(self, key: str | int) -> Field:
        """Return a field of this mapping, which may be missing, or an element of this list."""
        if isinstance(key, int):
            return Field(self.source, f"{self.path}[{key}]", self.value[key])
        plain = _WORD.fullmatch(key) is not None  # a label's key may contain dots
        step = f".{key}" if plain and self.path else key if plain else f"[{key!r}]"
        return Field(self.source, self.path + step, self.value.get(key))

    def wrong(self, expected: str) -> JobError:
        """Return the error for a wrong value."""
        value, shown = self.value, repr(self.value)
        if value is None:
            shown = "nothing"
        elif isinstance(value, dict | list):
            kind = "mapping" if isinstance(value, dict) else "list"
            shown = f"a {kind}" if value else f"an empty {kind}"
        elif len(shown) > _MAX_SHOWN:
            shown = shown[:_MAX_SHOWN] + "..."
        return JobError(f"{self.source}: {self.path or 'the document'}: got {shown}, expected {expected}.")

    def mapping(self, *known: str, required: str = "") -> Field:
        """Require a mapping, of the ``known`` fields only, if any are given. A missing one is empty, or required."""
        if self.value is None and not required and self.path:
            return self._replace(value={})
        if not isinstance(self.value, dict):
            raise self.wrong((self.value is None and required) or "a mapping")
        for key in self.value:
            if known and key not in known:
                raise self.at(key).wrong(f"no such field, but {', '.join(known)} only")
        return self

    def fields(self) -> list[Field]:
        """Return the fields of a mapping."""
        return [self.at(key) for key in self.mapping().value]

    def elements(self) -> list[Field]:
        """Return the elements of a list, which may be missing, as in Kubernetes."""
        if not isinstance(self.value, list | None):
            raise self.wrong("a list")
        return [self.at(number) for number in range(len(self.value or ()))]

    def text(self, pattern: str = r".+", expected: str = "a text") -> str:
        """Require a text that matches."""
        if not isinstance(self.value, str) or re.fullmatch(pattern, self.value, re.DOTALL) is None:
            raise self.wrong(expected)
        return self.value

    def any_text(self) -> str:
        """Require a text, also an empty one."""
        return self.text(".*", "a text: put it into quotes")

    def dns_label(self) -> str:
        """Require a name that is valid in Kubernetes for containers, volumes and namespaces."""
        return self.text(_DNS_LABEL, "a name of at most 63 lower-case letters, digits and hyphens")


class _Reader(yaml.SafeLoader):  # type: ignore[misc]  # of a library without types
    """Loads plain values. A date is a text, as in Kubernetes; a key that is no text or occurs twice is an error."""

    _num_aliases = 0

    yaml_implicit_resolvers = {  # noqa: RUF012  # it is the base class' table
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_document(self) -> Any:
        self._num_aliases = 0
        return super().compose_document()

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._num_aliases += self.check_event(yaml.AliasEvent)
        if self._num_aliases > _MAX_ALIASES:
            raise yaml.YAMLError(f"it has more than {_MAX_ALIASES} aliases")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> Any:
        node, seen = super().compose_mapping_node(anchor), set[str]()
        for key, _ in node.value:
            if key.tag not in (_TEXT, _MERGE):
                shown = f"the key {key.value!r}" if isinstance(key, yaml.ScalarNode) else "a key"
                raise yaml.composer.ComposerError(None, None, f"{shown} is no text: put it into quotes", key.start_mark)
            if key.value in seen and key.tag != _MERGE:
                raise yaml.composer.ComposerError(None, None, f"the key {key.value!r} occurs twice", key.start_mark)
            seen.add(key.value)
        return node


class _Writer(yaml.SafeDumper):  # type: ignore[misc]  # as above
    """Quotes texts that some parser could read as another type: Kubernetes' own knows ``y`` and ``1e3``."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> Any:
        plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT
        style = None if plain else "|" if "\n" in text else "'"
        return self.represent_scalar(_TEXT, text, style=style)


_Writer.add_representer(str, _Writer.represent_text)


def read_documents(text: str | bytes, source: str) -> list[Field]:
    """Return the documents of a YAML file; empty ones are skipped.

    Args:
        text: of the file.
        source: name of the file in errors.

    Raises:
        JobError: if it is not YAML, has a duplicate key, many aliases, or a value that JSON cannot express.

    Example:
        >>> read_documents("{kind: TrainingJob}", "job.yaml")
        [Field(source='job.yaml', path='', value={'kind': 'TrainingJob'})]
    """
    try:
        found = [document for document in yaml.load_all(text, Loader=_Reader) if document is not None]
        json.dumps(found, allow_nan=False)  # raises for what JSON cannot express
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise JobError(f"{source}: got something else than YAML, expected a TrainingJob: {message}") from error
    several = len(found) > 1
    return [Field(f"{source}, document {i}" if several else source, "", value) for i, value in enumerate(found, 1)]


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
