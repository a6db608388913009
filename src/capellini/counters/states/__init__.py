"""What a counter can be: one small file per state, one interface (interface.py), found by name (registry.py)."""
