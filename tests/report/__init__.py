"""Tests of the report, on tables built here from the schemas."""
