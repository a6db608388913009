"""One suite for every store: what `store/interface.py` promises, tried on each implementation."""
