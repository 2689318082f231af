"""Tests of the report, on tables made here through the schemas."""
