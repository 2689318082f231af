"""Tables in, one self-contained HTML file out: what is wrong, in the order a person needs it.

Reads Parquet with pyarrow only, in batches; imports `analysis`, `protocols` and `core`. Nothing but
`cli` imports this package.
"""

from polymux.report.load.tables import ReportError
from polymux.report.write import ReportInfo, rows_to_read, write_report

__all__ = ["ReportError", "ReportInfo", "rows_to_read", "write_report"]
