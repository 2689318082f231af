"""The batch pipeline: index, shuffle of packet references, analysis, publication of tables."""
