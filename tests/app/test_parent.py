import os
import signal
import subprocess
import sys
import time

import psutil

FAMILY = """
import multiprocessing, time
from app.parent import end_with_parent

def child(number):
    end_with_parent()
    time.sleep(60)

if __name__ == "__main__":
    end_with_parent()  # of a process that was not started by multiprocessing: nothing
    children = [multiprocessing.get_context(kind).Process(target=child, args=(1,)) for kind in ("spawn", "fork")]
    for one in children:
        one.start()
    print(*[one.pid for one in children], flush=True)
    time.sleep(60)
"""


def test_a_child_ends_with_a_parent_that_was_killed_and_not_before(tmp_path):
    file = tmp_path / "family.py"
    file.write_text(FAMILY)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        time.sleep(1)
        assert len(children) == 2
        assert all(child.is_running() for child in children)
        parent.send_signal(signal.SIGKILL)
        gone, alive = psutil.wait_procs(children, timeout=10)
        for child in alive:
            child.kill()
        assert alive == []
        assert len(gone) == 2
