"""One row a file, from the summaries of its ranges."""

from __future__ import annotations

from collections.abc import Iterable

from polymux.capture import FileSummary, merge_summaries


def merge_by_file(summaries: Iterable[FileSummary]) -> list[FileSummary]:
    """The summaries of all files, by name; those of one file's ranges come in their order."""
    parts: dict[str, list[FileSummary]] = {}
    for summary in summaries:
        parts.setdefault(summary.file, []).append(summary)
    return [merge_summaries(parts[name]) for name in sorted(parts)]
