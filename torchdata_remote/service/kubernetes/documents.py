"""Read and write YAML. PyYAML is in the extra ``[service]``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from ...errors import JobError

try:
    import yaml  # type: ignore[import-untyped]  # it carries no types
except ImportError as error:
    raise ImportError("Jobs are read and written as YAML: pip install 'torchdata_remote[service]'") from error

_MAX_ALIASES = 30  # however they are nested, they stand for at most 62,000 values, e**(30/e)
_TEXT = "tag:yaml.org,2002:str"
_PLAIN = re.compile(r"[A-Za-z/](?:[\w./-]|:(?=\S))*", re.ASCII)
_NOT_TEXT = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])  # in some YAML parsers


class _Writer(yaml.SafeDumper):  # type: ignore[misc]  # as above
    """Quotes texts that some parser could read as another type: Kubernetes' own knows ``y`` and ``1e3``."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> Any:
        plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT
        style = None if plain else "|" if "\n" in text else "'"
        return self.represent_scalar(_TEXT, text, style=style)


_Writer.add_representer(str, _Writer.represent_text)


def read_documents(text: str | bytes, source: str) -> list[Any]:
    """Return the documents of a YAML file; empty ones are skipped.

    Args:
        text: of the file.
        source: name of the file in errors.

    Raises:
        JobError: if it is not YAML, or has a value that JSON cannot express, such as a date without quotes.

    Example:
        >>> read_documents("{kind: TrainingJob}", "job.yaml")
        [{'kind': 'TrainingJob'}]
    """
    try:
        if sum(isinstance(one, yaml.AliasToken) for one in yaml.scan(text)) > _MAX_ALIASES:
            raise ValueError(f"it has more than {_MAX_ALIASES} aliases")
        found = [document for document in yaml.safe_load_all(text) if document is not None]
        json.dumps(found, allow_nan=False)  # raises for what JSON cannot express
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise JobError(f"{source}: got something else than YAML, expected a TrainingJob: {message}") from error
    return found


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
