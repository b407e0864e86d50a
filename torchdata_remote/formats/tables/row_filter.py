"""A condition on rows: which columns it needs, which row groups it excludes, which rows of a batch it accepts."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...core import arguments as check
from ...errors import SampleError

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN_WHOLE, _SHOWN_BEGINNING = 200, 60  # characters
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')
# The fields of a struct may be numbered, since a struct is read whole
_BY_POSITION = re.compile(r"(?<!FieldRef\.)FieldPath\(|FieldRef\.Nested\(FieldRef\.FieldPath\(")
# What pyarrow serializes of comparisons of columns and constants that are joined by ``&`` and ``|``. Each of them is
# false for NaN, which no statistics count, and none becomes true where another one becomes false
_EXCLUDING = re.compile(
    r"((call|end): '(and|or)_kleene'\n|call: '(?P<name>equal|less|less_equal|greater|greater_equal|is_in|is_valid)'\n"
    r"((literal|field_ref|nested_field_ref|options): '[^'\n]*'\n)+end: '(?P=name)'\n)+"
)
_MAY_HAVE_NAN = re.compile(r"value_set: \w*list<\w+: (\w*float|double|dictionary)")


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

        example = "pyarrow.compute.field('label') == 3, or [('label', '==', 3)]"
        if isinstance(condition, list) and condition:
            try:
                condition = pq.filters_to_expression(condition)
            except (ValueError, TypeError) as error:
                raise check.marked(
                    ValueError(f"filter cannot be used: {str(error).rstrip('.')}. Write {example}.")
                ) from error
        if not isinstance(condition, pc.Expression):
            raise check.marked(TypeError(f"filter must be such as {example}, got {check.shown(condition)}."))
        if _BY_POSITION.search(_LITERAL.sub("", str(condition))):
            raise check.marked(
                ValueError(f"filter {condition} has a column by its position: write its name, as in {example}.")
            )
        self._expression = condition
        self._excludes = _excludes(condition)
        self._names: dict[str, list[str]] = {}  # of the columns that it needs, by schema

    def described(self) -> str:
        """Return the condition as a text that other conditions do not have.

        pyarrow leaves out the middle of long lists of values, so a digest of all is added then. Another version of
        pyarrow may have another one.
        """
        text = " ".join(str(self._expression).split())
        if "..." not in text and len(text) <= _SHOWN_WHOLE:
            return text
        return f"{text[:_SHOWN_BEGINNING]} ... {blake2b(pickle.dumps(self._expression), digest_size=8).hexdigest()}"

    def names_in(self, schema: pa.Schema, url: str) -> list[str]:
        """Return the columns that the condition needs.

        pyarrow does not list them, so those are found without which the condition cannot be bound.

        Raises:
            SampleError: if it cannot be applied to this schema.
        """
        import pyarrow as pa

        bare = schema.remove_metadata()
        known = self._names.get(key := str(bare))
        if known is None:
            try:
                mask = self._mask(_null_row(bare))
                if not pa.types.is_boolean(mask.type):
                    raise TypeError(f"it is {mask.type} in place of bool")
            except (ValueError, NotImplementedError, TypeError, KeyError) as error:  # pyarrow's derive from these
                names = ", ".join(bare.names)
                raise self._unfit(url, error, f" The columns are: {names:.1000}.") from error
            self._names[key] = known = self._needed(bare)
        return known

    def _needed(self, schema: pa.Schema) -> list[str]:
        import pyarrow as pa

        text, names = str(self._expression), list(schema.names)
        mentioned = [name for name in names if name in text]
        needed = [name for name in mentioned if not self._binds(schema, without=name)]
        is_complete = self._binds(pa.schema([schema.field(name) for name in needed]), without=None)
        return needed if is_complete else [name for name in names if not self._binds(schema, without=name)]

    def _binds(self, schema: pa.Schema, *, without: str | None) -> bool:
        import pyarrow as pa

        try:
            self._mask(pa.schema([field for field in schema if field.name != without]).empty_table())
        except (ValueError, NotImplementedError, TypeError, KeyError):
            return False
        return True

    def kept(self, footer: bytes, groups: Sequence[int]) -> set[int]:
        """Return those of some row groups of a Parquet file that may have rows, by the statistics of its footer.

        All of them for a condition that may accept rows of which statistics do not tell, such as those with NaN, or
        whose constants have a type that cannot hold the statistics.
        """
        if not self._excludes:
            return set(groups)
        import pyarrow as pa
        import pyarrow.dataset as ds

        fragment = ds.ParquetFileFormat().make_fragment(pa.BufferReader(footer))
        some = fragment.subset(row_group_ids=list(groups))
        try:
            return {group.id for group in some.subset(filter=self._expression).row_groups}
        except pa.ArrowException:
            return set(groups)

    def accepted(self, batch: pa.RecordBatch, url: str) -> npt.NDArray[np.bool_]:
        """Return for each row whether it is accepted; one for which the condition is null is not.

        Raises:
            SampleError: for a value to which it cannot be applied, such as a text that is no number.
        """
        import pyarrow as pa

        batch.validate()  # a damaged one is not the condition's fault
        try:
            mask = self._mask(pa.Table.from_batches([batch]))
        except pa.ArrowException as error:
            raise self._unfit(url, error) from error
        found: npt.NDArray[np.bool_] = mask.fill_null(False).to_numpy()
        return found.astype(bool)

    def _unfit(self, url: str, error: Exception, advice: str = "") -> SampleError:
        why = str(error).partition("\n")[0].rstrip(".")
        return SampleError(f"{url}: filter {self._expression} cannot be applied: {why}.{advice}", url=url)

    def _mask(self, table: pa.Table) -> Any:
        from pyarrow import acero

        plan = [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([self._expression], ["accepted"])),
        ]
        return acero.Declaration.from_sequence(plan).to_table(use_threads=False).column(0)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_names": {}}


def _null_row(schema: pa.Schema) -> pa.Table:
    """Return a table of one row: some comparisons refuse their types when there is a row to compare."""
    import pyarrow as pa

    try:
        return pa.table([pa.nulls(1, field.type) for field in schema], names=schema.names)
    except (ValueError, NotImplementedError, TypeError, KeyError):  # pyarrow cannot make nulls of each type
        return schema.empty_table()


def _excludes(expression: Any) -> bool:
    """Whether statistics may exclude row groups by a condition: see ``_EXCLUDING``."""
    import pyarrow as pa

    serialized = expression.__reduce__()[1][0]  # the text of a condition leaves out values, and quotes of names
    text = pa.ipc.open_file(serialized).schema.to_string(truncate_metadata=False)
    constants, _, calls = text.partition("-- schema metadata --\n")
    return _EXCLUDING.fullmatch(f"{calls}\n") is not None and _MAY_HAVE_NAN.search(constants) is None
