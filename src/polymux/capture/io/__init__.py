"""Input and output of captures: discovery, files, pipes, remote stores, and coalesced reads."""
