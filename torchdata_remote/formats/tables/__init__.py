"""Tables of Parquet and Arrow: which bytes a row group needs, and its rows as Python values. No network.

pyarrow is an optional dependency, so modules of this package import it in functions.
"""

from .columns import Columns, Resolved
from .footer import Footer, read_footer
from .index import TableIndex
from .indexes import index_of
from .library import ADVICE, reading, require_pyarrow
from .row_filter import RowFilter
from .rows import row_samples
from .views import without_views

__all__ = [
    "ADVICE",
    "Columns",
    "Footer",
    "Resolved",
    "RowFilter",
    "TableIndex",
    "index_of",
    "read_footer",
    "reading",
    "require_pyarrow",
    "row_samples",
    "without_views",
]
