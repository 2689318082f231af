"""pcap and pcapng files: scanning, writing, rotating, splitting and repairing them."""
