"""Log queues: extents, blocks, groups."""
