"""Values, errors and the table of options; imports nothing of ours."""
