"""CPU time of processes, of those that have ended meanwhile too."""

import psutil


class Family:
    """This process and its descendants, or the descendants alone. One that starts and ends between two readings is
    missed."""

    def __init__(self, with_me: bool = True) -> None:
        self.with_me = with_me
        self.seen: dict[tuple[int, float], float] = {}
        self.names: dict[tuple[int, float], str] = {}

    def cpu_s(self) -> float:
        """CPU seconds of all of them so far."""
        me = psutil.Process()
        for process in [*([me] if self.with_me else []), *me.children(recursive=True)]:
            try:
                times, key = process.cpu_times(), (process.pid, process.create_time())
                self.names[key] = " ".join(process.cmdline()[:4])
            except psutil.NoSuchProcess:
                continue
            self.seen[key] = times.user + times.system
        return sum(self.seen.values())

    def by_process(self) -> dict[tuple[int, float], float]:
        """CPU seconds of each, as last read."""
        return dict(self.seen)
