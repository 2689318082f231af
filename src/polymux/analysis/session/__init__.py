"""The analysis of one session: reassembled bytes in, table rows out."""
