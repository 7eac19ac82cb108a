"""Processes that must not outlive the one that started them, however that one ends."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """End this process, if multiprocessing started it, as soon as the process that did so is gone.

    A parent that is killed can take nobody along: an engine core would hold its memory and wait for requests for ever.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end with parent").start()
