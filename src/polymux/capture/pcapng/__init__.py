"""pcap and pcapng files: scanning, writing, rotation, split index and repair."""
