"""Logs go to stderr, as text for people or as JSON for programs. Never a body, never a password."""

from __future__ import annotations

import datetime
import logging
import sys
from typing import TextIO

import msgspec


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self.default_msec_format = "%s.%03d"


class JsonFormatter(logging.Formatter):
    """One object per line: at, level, logger, says, and error with its trace."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, str] = {
            "at": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "says": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def set_up(level: str, form: str, stream: TextIO | None = None) -> logging.Handler:
    """Of our loggers only: those of libraries stay at warnings."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("capellini").setLevel(level.upper())
    return handler
