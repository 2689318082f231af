"""Write the pages of the docs that are made from the code."""

from pathlib import Path

from polymux.analysis.tables import column_reference

DOCS = Path(__file__).parent.parent / "docs"

if __name__ == "__main__":
    (DOCS / "tables.md").write_text(column_reference())
