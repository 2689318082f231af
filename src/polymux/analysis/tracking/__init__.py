"""What is measured while frames pass: streams, stalls, busy periods, timeline and latencies."""
