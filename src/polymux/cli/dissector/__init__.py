"""The Wireshark dissector: a Lua script, with tables generated from the protocols."""
