"""A lock that is safe to hold while another thread forks."""

from __future__ import annotations

import os
import threading
import weakref
from typing import ClassVar


class ForkSafeLock:
    """A reentrant lock that a forked child finds open, whatever thread of the parent held it.

    Pickles as a new lock, so that its owner can be pickled without further ado.
    """

    _all: ClassVar[weakref.WeakSet[ForkSafeLock]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._lock = threading.RLock()
        ForkSafeLock._all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[ForkSafeLock], tuple[()]]:
        return ForkSafeLock, ()

    @classmethod
    def _renew_all(cls) -> None:
        for lock in list(cls._all):
            lock._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ForkSafeLock._renew_all)
