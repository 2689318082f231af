"""The report: one self-contained HTML file from the tables of an analysis, worst findings first.

`load` reads the Parquet tables in batches with pyarrow and selects what the page has room for,
`render` turns it into sentences, a page model and HTML. Uses `analysis` and what
is below it; `cli` uses it.
"""

from typing import TYPE_CHECKING

from polymux.lazy_names import lazy_names

if TYPE_CHECKING:
    from polymux.report.load.tables import ReportError
    from polymux.report.write import ReportInfo, rows_to_read, write_report

__all__ = ["ReportError", "ReportInfo", "rows_to_read", "write_report"]

if not TYPE_CHECKING:  # a type checker must go on reporting names that are not there
    # `ls` needs the wording of the report only.
    __getattr__ = lazy_names(
        __name__,
        {
            **dict.fromkeys(__all__, "polymux.report.write"),
            "ReportError": "polymux.report.load.tables",
        },
    )
