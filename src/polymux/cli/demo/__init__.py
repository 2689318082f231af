"""The peers and the traffic of `polymux demo`."""
