"""The benchmark and the peers it is compared with."""
