"""TCP: packet order, reassembly, and the sessions of a flow."""
