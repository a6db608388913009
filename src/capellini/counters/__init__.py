"""Order-free counters: many mutators, one exact value. Start at service.py; docs/counters.md has the argument."""
