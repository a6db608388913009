"""A real Cassandra cluster on this machine, for tests and trying things out."""
