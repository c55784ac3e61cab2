"""Starts a service: ``python start.py LOCK SOCKET ROOT``. Run as a file, without the package.

Whoever gets the lock is the service. It listens before it imports anything large, so that those who
come second find it at once and wait. Exit code 75: there is a service, or it is just ending.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys

BUSY = 75


def _locked(lock: str):
    """The file, locked; None if another process has it, or is just removing it."""
    held = open(lock, "w")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held.fileno()), os.stat(lock)):
            return held
    except (BlockingIOError, FileNotFoundError):
        pass
    held.close()
    return None


def _sweep(folder: str, own: str) -> None:
    """Removes what killed services of other versions have left."""
    for name in os.listdir(folder):
        lock = os.path.join(folder, name)
        if not name.endswith(".lock") or lock == own:
            continue
        held = _locked(lock)
        if held is not None:
            for suffix in (".sock", ".log", ".lock"):
                _unlink(lock.removesuffix(".lock") + suffix)
            held.close()


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def main(lock: str, path: str, root: str) -> None:
    """Locks, listens, then serves until the service is not needed any more."""
    usual = os.umask(0o077)
    held = _locked(lock)
    if held is None:
        sys.exit(BUSY)
    _sweep(os.path.dirname(lock), lock)
    _unlink(path)  # of a service that was killed
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)
    os.umask(usual)
    # The script's own folder comes first on the path; modules there are not top-level ones.
    sys.path[0] = root
    from jaxbench_env.evaluator.service.server import Server

    Server(listener, path).run()
    _unlink(lock)
    os._exit(0)  # its threads have nothing to say any more


if __name__ == "__main__":
    main(*sys.argv[1:])
