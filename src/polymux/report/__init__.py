"""Tables in, one self-contained HTML file out: what is wrong, in the order a person needs it.

Reads Parquet with pyarrow only, in batches; imports `analysis`, `protocols` and `core`. Nothing but
`cli` imports this package.
"""

from .reading import ReportError
from .write import ReportInfo, rows_to_read, write_report

__all__ = ["ReportError", "ReportInfo", "rows_to_read", "write_report"]
