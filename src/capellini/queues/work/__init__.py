"""The `work` kind: buckets of ids, claims by compare-and-set, repair."""
