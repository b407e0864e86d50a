"""Arrow's views of strings, which polars writes: pyarrow can read them, but hardly compute with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def without_views(schema: pa.Schema) -> pa.Schema:
    """Return a schema to cast to, with large strings and large binaries in place of views, also in nested types.

    Example:
        >>> import pyarrow as pa
        >>> without_views(pa.schema({"a": pa.list_(pa.string_view()), "b": pa.string()}))
        a: list<item: large_string>
          child 0, item: large_string
        b: string
    """
    import pyarrow as pa

    return pa.schema([field.with_type(_without(field.type)) for field in schema], schema.metadata)


def _without(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if str(kind) in ("string_view", "binary_view"):  # types of their own came with pyarrow 16
        return pa.large_string() if str(kind) == "string_view" else pa.large_binary()
    if "_view" not in str(kind):
        return kind
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_inner(kind))
    if pa.types.is_large_list(kind):
        return pa.large_list(_inner(kind))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_inner(kind), kind.list_size)
    return kind


def _inner(kind: pa.DataType) -> pa.Field:
    return kind.value_field.with_type(_without(kind.value_type))
