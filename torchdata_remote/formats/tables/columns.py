"""Which columns of a table become which entries of a sample."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core import arguments as check
from ...core.arguments import did_you_mean
from ...errors import MissingMemberError, SampleError, ShardReadError
from ..sample import KEY, URL
from .row_filter import RowFilter

if TYPE_CHECKING:
    import pyarrow as pa

Path = tuple[str, ...]  # of a column, and of the fields of structs in it

_EXAMPLE = "['image', 'label'], or {'image.bytes': 'jpg', 'label': 'cls'}"


class Resolved(NamedTuple):
    """The columns of one file.

    Args:
        entries: name in the sample and path of each entry; without a path, it is ``None`` in each sample.
        key: path of the column that has the keys; ``None`` for row numbers.
        paths: of all columns to read.
        row_filter: applied to the rows.
        kinds: name in the sample -> type of its column, as far as values depend on it.
    """

    entries: list[tuple[str, Path | None]]
    key: Path | None
    paths: list[Path]
    row_filter: RowFilter | None
    kinds: dict[str, str]


class Columns:
    """The columns that a user has chosen.

    Args:
        columns: names, or a mapping from names to those in the sample; ``None`` for all. ``image.bytes`` is the field
            ``bytes`` of the column ``image``.
        key: column whose values are keys; ``None`` for ``__key__`` if there is one, else row numbers.
        row_filter: which rows to yield.
        optional: those of the chosen columns that a file may lack.
    """

    def __init__(
        self, columns: object, key: str | None, row_filter: RowFilter | None, optional: Collection[str] = ()
    ) -> None:
        self._names = None if columns is None else _names_of(columns)
        self._key = check.text_or_none("key", key, example="id")
        self._filter = row_filter
        self._optional = _optional_of(optional, self._names or {})
        self._kinds: dict[str, tuple[str, str]] = {}  # name in the sample -> first type, and the file that has it

    @property
    def row_filter(self) -> RowFilter | None:
        """Which rows to yield."""
        return self._filter

    def resolve(self, schema: pa.Schema, url: str) -> Resolved:
        """Find the columns in the schema of a file.

        Raises:
            MissingMemberError: if there is no such column.
            SampleError: if the filter, or the column of the keys, does not fit; for a column that has a name of the
                reader, unless columns are chosen.
            ShardReadError: for a name that two columns have.
        """
        key = self._key_in(schema, url)
        if self._names is None:
            names = [name for name in schema.names if (name, key) != (KEY, (KEY,))]
            if reserved := [name for name in names if name in (KEY, URL)]:
                raise _reserved(reserved[0], names, url)
            entries: list[tuple[str, Path | None]] = [(name, (name,)) for name in names]
        else:
            entries = [(to, self._chosen(schema, name, url)) for name, to in self._names.items()]
        needed: list[Path] = [] if self._filter is None else [(name,) for name in self._filter.names_in(schema, url)]
        paths = list(dict.fromkeys([path for path in (*(path for _, path in entries), key, *needed) if path]))
        for name in {path[0] for path in paths}:
            if schema.names.count(name) > 1:
                raise ShardReadError(f"{url}: {schema.names.count(name)} columns are named {name!r}.", url=url)
        kinds = {name: _kind(_type_at(schema, path)) for name, path in entries if path}
        return Resolved(entries, key, paths, self._filter, kinds)

    def say_changes(self, kinds: Mapping[str, str], url: str) -> None:
        """Warn of each entry whose type is another one than in the files before, once.

        Args:
            kinds: of a file whose rows are yielded.
            url: of this file.
        """
        for name, kind in kinds.items():
            first, before = self._kinds.setdefault(name, (kind, url))
            if first not in (kind, ""):
                self._kinds[name] = "", url
                warnings.warn(
                    f"{url}: {name!r} is {kind}, and {first} in {before}. The values stay as each file has them. "
                    "Convert them to one type by map(), or write the files with one schema.",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _chosen(self, schema: pa.Schema, name: str, url: str) -> Path | None:
        try:
            return _path_of(schema, name, url)
        except MissingMemberError as error:
            if name in self._optional:
                return None
            advice = f"If only some files have it, optional=[{name!r}] makes it None in the samples of the others."
            raise MissingMemberError(f"{error} {advice}", url=url) from None

    def _key_in(self, schema: pa.Schema, url: str) -> Path | None:
        import pyarrow as pa

        if self._key is None:
            found = schema.get_all_field_indices(KEY)
            return (KEY,) if found and _is_text(schema.field(found[0]).type) else None
        path = _path_of(schema, self._key, url)
        kind = _type_at(schema, path)
        if not (_is_text(kind) or pa.types.is_integer(kind)):
            raise SampleError(f"{url}: key={self._key!r} must be a column of strings or integers, got {kind}.", url=url)
        return path


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view"


def _names_of(columns: object) -> dict[str, str]:
    """Return the names in the sample by those in the table.

    Raises:
        TypeError: for anything but a list or mapping of ``str``.
        ValueError: for names that cannot be entries.
    """
    if isinstance(columns, Mapping):
        names: dict[Any, Any] = dict(columns)
    elif isinstance(columns, Sequence) and not isinstance(columns, str | bytes):
        if len(set(map(str, columns))) != len(columns):
            raise check.marked(ValueError(f"columns has a name twice: {', '.join(map(str, columns)):.500}."))
        names = {name: name for name in columns}
    else:
        raise check.marked(TypeError(f"columns must be such as {_EXAMPLE}, got {check.shown(columns)}."))
    if not names:
        raise check.marked(ValueError(f"columns must have a name at least, such as {_EXAMPLE}."))
    for name in [*names, *names.values()]:
        check.text("a name in columns", name, example="label")
    if twice := [name for name in names.values() if list(names.values()).count(name) > 1]:
        raise check.marked(ValueError(f"columns has {twice[0]!r} for two columns: a sample has one entry of a name."))
    for column, name in names.items():
        if name in (KEY, URL):
            advice = f"Rename it by columns={ {column: name.strip('_')}!r}; key= chooses the column of the keys."
            raise check.marked(ValueError(f"columns: {name!r} is set by the reader. {advice}"))
    return names


def _optional_of(optional: object, names: Mapping[str, str]) -> frozenset[str]:
    if not isinstance(optional, Collection) or isinstance(optional, str) or not set(optional) <= set(names):
        raise check.marked(
            ValueError(f"optional must be a list of names that columns has too, got {check.shown(optional)}.")
        )
    return frozenset(optional)


def _reserved(name: str, names: list[str], url: str) -> SampleError:
    others = {name: name for name in names if name not in (KEY, URL)}
    advice = f"Rename it by columns={ {name: name.strip('_'), **others}!r:.1000}, or leave it out of columns="
    keys = f"; key={KEY!r} takes the keys from it" if name == KEY else ""
    return SampleError(f"{url} has a column {name!r}, an entry that the reader sets itself. {advice}{keys}.", url=url)


def _path_of(schema: pa.Schema, name: str, url: str) -> Path:
    import pyarrow as pa

    if name in schema.names:
        return (name,)
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        if (column := ".".join(parts[:end])) in schema.names:
            path: Path = (column,)
            kind = schema.field(schema.names.index(column)).type
            for field in parts[end:]:
                if not pa.types.is_struct(kind) or kind.get_field_index(field) < 0:
                    break
                path, kind = (*path, field), kind.field(kind.get_field_index(field)).type
            else:
                return path
    known = list(schema.names)
    suggestion = did_you_mean(name, known) or "."
    raise MissingMemberError(
        f"{url} has no column {name!r}{suggestion} Its columns are: {', '.join(known):.1000}.", url=url
    )


def _type_at(schema: pa.Schema, path: Path) -> pa.DataType:
    kind = schema.field(schema.names.index(path[0])).type
    for name in path[1:]:
        kind = kind.field(kind.get_field_index(name)).type
    return kind


def _kind(kind: pa.DataType) -> str:
    """Return a type without what its values do not tell: large or small, nullable, encoded as a dictionary."""
    text = re.sub(r"dictionary<values=(.*?), indices=\w+, ordered=\d>", r"\1", str(kind))
    return re.sub(r"large_| not null|(?<=list<)\w+: ", "", text)
