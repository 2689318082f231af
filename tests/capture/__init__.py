"""Tests of `polymux.capture`. Every capture is built here, octet by octet, by `build`."""
