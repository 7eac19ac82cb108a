"""app.fit: the thread that waits for the training can be interrupted."""

import subprocess
import sys

STOPPED = """
import os, signal, threading, time
from app import fit

fit._train = lambda *_: time.sleep(60)
# As when the kernel hands the signal to another thread: this one's wait is not interrupted.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
other = threading.Timer(1, lambda: (signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT}), time.sleep(60)))
other.daemon = True
other.start()
threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    fit.fit(None, None, False)
except KeyboardInterrupt:
    print("stopped", flush=True)
    os._exit(0)
"""


def test_a_stop_gets_through_whichever_thread_the_signal_goes_to():
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=40)
    assert done.stdout == "stopped\n", done.stderr
