"""Tables of Parquet and Arrow: which bytes a row group needs, and its rows as Python values. No network.

pyarrow is an optional dependency, so modules of this package import it in functions.
"""

from .columns import Columns, Resolved
from .footer import Footer, read_footer
from .index import TableIndex, index_of
from .library import require_pyarrow
from .row_filter import RowFilter
from .rows import row_samples

__all__ = [
    "Columns",
    "Footer",
    "Resolved",
    "RowFilter",
    "TableIndex",
    "index_of",
    "read_footer",
    "require_pyarrow",
    "row_samples",
]
