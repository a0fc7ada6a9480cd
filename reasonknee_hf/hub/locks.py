"""What is safe to hold while the process forks: a lock, and a filesystem of `fsspec`."""

from __future__ import annotations

import os
import pickle
import threading
import weakref
from typing import Any, ClassVar

import fsspec.asyn


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


class ForkSafeFilesystem:
    """A filesystem of `fsspec` that a forked child can use as well.

    Asynchronous ones refuse to work there: they belong to an event loop whose thread stayed in the parent.
    """

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self._pid = os.getpid()

    def get(self) -> Any:
        """The filesystem, made anew after a fork."""
        if self._pid != os.getpid():
            self._filesystem, self._pid = pickle.loads(pickle.dumps(self._filesystem)), os.getpid()
        return self._filesystem

    def __reduce__(self) -> tuple[type[ForkSafeFilesystem], tuple[Any]]:
        return ForkSafeFilesystem, (self._filesystem,)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ForkSafeLock._renew_all)
    if not hasattr(fsspec.asyn, "reset_after_fork"):
        # Versions of fsspec without this function leave the child waiting for the loop of its parent.
        os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)
