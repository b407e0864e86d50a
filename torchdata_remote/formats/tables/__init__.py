"""Tables of Parquet and Arrow: which bytes a row group needs, and its rows as Python values. No network.

pyarrow is an optional dependency, so modules of this package import it in functions.
"""

from .columns import Columns, Resolved, RowFilter, require_pyarrow
from .footer import Footer, read_footer
from .row_groups import row_groups
from .rows import row_samples

__all__ = ["Columns", "Footer", "Resolved", "RowFilter", "read_footer", "require_pyarrow", "row_groups", "row_samples"]
