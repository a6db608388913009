"""One running process: a store opened, leases held, maintenance run."""
