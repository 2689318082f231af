"""Tests against a real Spark: one local session for all of them, one small cluster."""
