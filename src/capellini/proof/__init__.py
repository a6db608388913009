"""Histories and the checkers that prove the promises."""
