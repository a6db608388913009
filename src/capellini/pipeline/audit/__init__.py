"""The audit: every message's life, from the journal. See `job.py` for how, `verdict.py` for what is a fault."""
