"""Tests of `polymux.capture`. Every capture is built here, byte by byte, by `build`."""
