"""The journal as columns: read from what nodes write, and generated at any size."""
