"""A loopback origin server that speaks the Hub's protocol, fault rules for it, and a real mirror in front."""
