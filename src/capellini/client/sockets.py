"""Where the owner of a folder listens for the others: a Unix socket in the folder itself.

The address of a Unix socket has room for some 107 bytes, while folders may lie deep. A long path is therefore taken
through the folder's file descriptor, which has a short name: /proc/self/fd/N/node.sock.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SOCKET_NAME: Final = "node.sock"
PATH_BYTES: Final = 100  # below the least limit of the systems around (104)


class SocketPath:
    """A path to the folder's socket that is short enough, as long as this object is open. The folder has to exist."""

    def __init__(self, folder: Path) -> None:
        self._folder_fd: int | None = None
        direct = folder.absolute() / SOCKET_NAME
        if len(os.fsencode(direct)) <= PATH_BYTES:
            self.path = direct
            return
        self._folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.path = Path(f"/proc/self/fd/{self._folder_fd}/{SOCKET_NAME}")

    def close(self) -> None:
        if self._folder_fd is not None:
            os.close(self._folder_fd)
            self._folder_fd = None
