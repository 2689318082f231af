"""Measurement per frame: stream trackers, stalls, busy periods, timeline and latencies."""
