"""Order-free counters: mutators, shards, tallies and their garbage collection."""
