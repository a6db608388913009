"""A cluster in memory with a virtual clock and faults: a run is a pure function of its seed."""
