"""Credit assignment measured against the truth: small decision processes with exact advantages."""
