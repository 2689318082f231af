"""TLS between reassembly and the protocol decoder: records opened with the secrets of key logs."""
