"""Which columns of a table become which entries of a sample, and which of its rows become samples."""

from __future__ import annotations

import pickle
import re
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...core import arguments as check
from ...core.arguments import did_you_mean
from ...errors import MissingMemberError, SampleError, ShardReadError
from ..sample import KEY, URL

if TYPE_CHECKING:
    import pyarrow as pa

Path = tuple[str, ...]  # of a column, and of the fields of structs in it

_COLUMNS = "['image', 'label'], or {'image.bytes': 'jpg', 'label': 'cls'}"
_FILTER = "pyarrow.compute.field('label') == 3, or [('label', '==', 3)]"
_SHOWN_WHOLE, _SHOWN_BEGINNING = 200, 60  # characters
# What pyarrow serializes of comparisons of columns and constants that are joined by ``&`` and ``|``. Each of them is
# false for NaN, which no statistics count, and none becomes true where another one becomes false
_EXCLUDING = re.compile(
    r"((call|end): '(and|or)_kleene'\n|call: '(?P<name>equal|less|less_equal|greater|greater_equal|is_in|is_valid)'\n"
    r"((literal|field_ref|nested_field_ref|options): '[^'\n]*'\n)+end: '(?P=name)'\n)+"
)
_MAY_HAVE_NAN = re.compile(r"value_set: \w*list<\w+: (\w*float|double|dictionary)")


def require_pyarrow(reader: str) -> None:
    """Check that pyarrow is installed, without importing it.

    Args:
        reader: that needs it.

    Raises:
        ImportError: if it is not.
    """
    if find_spec("pyarrow") is None:
        raise ImportError(f"{reader} needs pyarrow: pip install 'torchdata_remote[tables]'")


class RowFilter:
    """A condition on rows. Picklable.

    Args:
        condition: a ``pyarrow.compute.Expression``, or a list of tuples ``("label", "in", [3, 4])`` that are all
            required, as ``pyarrow.parquet.read_table`` takes them.

    Raises:
        TypeError: for anything else.
        ValueError: for tuples that are no conditions; for a column by its position, which is another one among those
            that are read.
    """

    def __init__(self, condition: Any) -> None:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        if isinstance(condition, list) and condition:
            try:
                condition = pq.filters_to_expression(condition)
            except (ValueError, TypeError) as error:
                why = str(error).rstrip(".")
                raise check.marked(ValueError(f"filter cannot be used: {why}. Write {_FILTER}.")) from error
        if not isinstance(condition, pc.Expression):
            raise check.marked(TypeError(f"filter must be such as {_FILTER}, got {check.shown(condition)}."))
        self._expression, self._text = condition, str(condition)
        if "FieldPath(" in self._text:
            raise check.marked(ValueError(f"filter {condition} has a field by its position: write its name."))
        self._excludes = _excludes(condition)

    def described(self) -> str:
        """Return the condition as a text that other conditions do not have.

        pyarrow leaves out the middle of long lists of values, so a digest of all is added then. Another version of
        pyarrow may have another one.
        """
        text = " ".join(self._text.split())
        if "..." not in text and len(text) <= _SHOWN_WHOLE:
            return text
        return f"{text[:_SHOWN_BEGINNING]} ... {blake2b(pickle.dumps(self._expression), digest_size=8).hexdigest()}"

    def names_in(self, schema: pa.Schema, url: str) -> list[str]:
        """Return the columns that the condition names, and perhaps others: pyarrow does not list them.

        Raises:
            SampleError: if it cannot be applied to this schema.
        """
        import pyarrow as pa

        fields = self._fields(schema)
        try:
            pa.schema(fields).empty_table().filter(self._expression)
        except (pa.ArrowException, ValueError, NotImplementedError, TypeError, KeyError) as error:
            raise self._unfit(url, error, f" The columns are: {', '.join(schema.names):.1000}.") from error
        return [field.name for field in fields]

    def _fields(self, schema: pa.Schema) -> list[pa.Field]:
        return [field for field in schema if re.search(rf"(?<!\w){re.escape(field.name)}(?!\w)", self._text)]

    def kept(self, footer: pa.Buffer, groups: Sequence[int]) -> set[int]:
        """Return those of some row groups of a Parquet file that may have rows, by the statistics of its footer.

        All of them for a condition that may accept rows of which statistics do not tell, such as those with NaN, or
        whose constants have a type that cannot hold the statistics.
        """
        if not self._excludes:
            return set(groups)
        import pyarrow as pa
        import pyarrow.dataset as ds

        some = ds.ParquetFileFormat().make_fragment(pa.BufferReader(footer)).subset(row_group_ids=list(groups))
        try:
            return {group.id for group in some.subset(filter=self._expression).row_groups}
        except pa.ArrowException:
            return set(groups)

    def accepted(self, batch: pa.RecordBatch, url: str) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows that are accepted; one for which the condition is null is not.

        Raises:
            SampleError: for a value to which it cannot be applied, such as a text that is no number.
        """
        import pyarrow as pa

        batch.validate()  # a damaged one is not the condition's fault
        names = [field.name for field in self._fields(batch.schema)]
        columns = [*map(batch.column, names), pa.array(np.arange(batch.num_rows))]
        try:
            rows = pa.table(columns, names=[*names, ""]).filter(self._expression).column(len(names))
        except pa.ArrowException as error:
            raise self._unfit(url, error) from error
        found: npt.NDArray[np.int64] = rows.to_numpy()
        return found

    def _unfit(self, url: str, error: Exception, advice: str = "") -> SampleError:
        why = str(error).partition("\n")[0].rstrip(".")
        return SampleError(f"{url}: filter {self._expression} cannot be applied: {why}.{advice}", url=url)


def _excludes(expression: Any) -> bool:
    """Whether statistics may exclude row groups by a condition: see ``_EXCLUDING``."""
    import pyarrow as pa

    serialized = expression.__reduce__()[1][0]  # the text of a condition leaves out values, and quotes of names
    text = pa.ipc.open_file(serialized).schema.to_string(truncate_metadata=False)
    constants, _, calls = text.partition("-- schema metadata --\n")
    return _EXCLUDING.fullmatch(f"{calls}\n") is not None and _MAY_HAVE_NAN.search(constants) is None


class Resolved(NamedTuple):
    """The columns of one file.

    Args:
        entries: name in the sample and path of each entry; without a path, it is ``None`` in each sample.
        key: path of the column that has the keys; ``None`` for row numbers.
        paths: of all columns to read.
        row_filter: applied to the rows.
    """

    entries: list[tuple[str, Path | None]]
    key: Path | None
    paths: list[Path]
    row_filter: RowFilter | None

    @property
    def names(self) -> list[str]:
        """Of all columns to read, with a dot before the name of a field."""
        return [".".join(path) for path in self.paths]


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
        self.row_filter = row_filter
        if not isinstance(optional, list | tuple | set | frozenset) or not set(optional) <= set(self._names or ()):
            raise check.marked(
                ValueError(f"optional must be a list of names that columns has too, got {check.shown(optional)}.")
            )
        self._optional = frozenset(optional)

    def resolve(self, schema: pa.Schema, url: str) -> Resolved:
        """Find the columns in the schema of a file.

        Raises:
            MissingMemberError: if there is no such column.
            SampleError: if the filter, or the column of the keys, does not fit; for a column that has a name of the
                reader, unless columns are chosen.
            ShardReadError: for a name that two columns have.
        """
        key = self._key_in(schema, url)
        entries: list[tuple[str, Path | None]] = []
        if self._names is None:
            entries = [(name, (name,)) for name in schema.names if (name, key) != (KEY, (KEY,))]
            if reserved := [name for name, _ in entries if name in (KEY, URL)]:
                raise SampleError(
                    f"{url} has a column {reserved[0]!r}, an entry that the reader sets itself. Rename it by columns=, "
                    "or leave it out there; key= chooses the column of the keys.",
                    url=url,
                )
        else:
            for name, to in self._names.items():
                is_lacking = name in self._optional and _found(schema, name) is None
                entries.append((to, None if is_lacking else _path_of(schema, name, url)))
        needed: list[Path] = [] if self.row_filter is None else [(n,) for n in self.row_filter.names_in(schema, url)]
        paths = list(dict.fromkeys([path for path in (*(path for _, path in entries), key, *needed) if path]))
        for name in {path[0] for path in paths}:
            if schema.names.count(name) > 1:
                raise ShardReadError(f"{url}: {schema.names.count(name)} columns are named {name!r}.", url=url)
        return Resolved(entries, key, paths, self.row_filter)

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

    return _is_text(kind.value_type) if pa.types.is_dictionary(kind) else "string" in str(kind).partition("<")[0]


def _names_of(columns: object) -> dict[str, str]:
    """Return the names in the sample by those in the table.

    Raises:
        TypeError: for anything but a list or mapping of ``str``.
        ValueError: for names that cannot be entries.
    """
    if isinstance(columns, Mapping):
        pairs: list[tuple[Any, Any]] = list(columns.items())
    elif isinstance(columns, Sequence) and not isinstance(columns, str | bytes):
        pairs = [(name, name) for name in columns]
    else:
        raise check.marked(TypeError(f"columns must be such as {_COLUMNS}, got {check.shown(columns)}."))
    if not pairs:
        raise check.marked(ValueError(f"columns must have a name at least, such as {_COLUMNS}."))
    names = [check.text("a name in columns", name, example="label") for pair in pairs for name in pair][1::2]
    if twice := [name for name in names if names.count(name) > 1]:
        raise check.marked(ValueError(f"columns has {twice[0]!r} for two columns: a sample has one entry of a name."))
    for column, name in pairs:
        if name in (KEY, URL):
            advice = f"Rename it by columns={ {column: name.strip('_')}!r}; key= chooses the column of the keys."
            raise check.marked(ValueError(f"columns: {name!r} is set by the reader. {advice}"))
    return dict(pairs)


def _found(schema: pa.Schema, name: str) -> Path | None:
    """Return the path of a column, or of a field; ``None`` if there is none."""
    if name in schema.names:
        return (name,)
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        path = (".".join(parts[:end]), *parts[end:])
        try:
            _type_at(schema, path)
        except (ValueError, TypeError, AttributeError, KeyError):
            continue
        return path
    return None


def _path_of(schema: pa.Schema, name: str, url: str) -> Path:
    path = _found(schema, name)
    if path is not None:
        return path
    known = list(schema.names)
    raise MissingMemberError(
        f"{url} has no column {name!r}{did_you_mean(name, known) or '.'} If only some files have it, "
        f"optional=[{name!r}] makes it None in the samples of the others. The columns are: {', '.join(known):.1000}.",
        url=url,
    )


def _type_at(schema: pa.Schema, path: Path) -> pa.DataType:
    kind = schema.field(schema.names.index(path[0])).type
    for name in path[1:]:
        kind = kind.field(name).type  # KeyError without such a field
    return kind
