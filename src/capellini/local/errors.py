"""What can go wrong with a local cluster, said in one line a person can act on."""

from __future__ import annotations


class ClusterError(Exception):
    """A local cluster cannot do what was asked; the text says why and what to do."""


class MissingTool(ClusterError):
    """Java or Maven is missing or too old; the text names what to install."""
