"""The inside of LocalSandbox: gives up what it can, then runs program.py of the current folder.

Run by its path with `python -I -S`: it knows the standard library only. What it gives up, it cannot get back.
"""

import ctypes
import json
import os
import resource
import runpy
import signal
import sys
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
NOBODY = 65534
UNREADABLE = 3
"""Exit code of a process whose library may not be read by the user that it became."""

# Landlock: system calls, and access rights by the version of its interface.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, READ_FILE, READ_DIR = 1 << 0, 1 << 2, 1 << 3
NUM_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
MOST_RIGHTS = 16
SCOPES_FROM = 6
"""The first version that keeps signals and abstract sockets inside."""
ABSTRACT_SOCKETS, SIGNALS = 1 << 0, 1 << 1


class Rule(ctypes.Structure):
    """A folder, and what may be done beneath it."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder_fd", ctypes.c_int32))


def main() -> None:
    request = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    # Root may leave the network at once; others may in a user namespace of their own, root no longer being among them.
    isolated = libc.unshare(CLONE_NEWNET | CLONE_NEWIPC) == 0
    _become_nobody()
    isolated = isolated or libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC) == 0
    if not isolated and not request["allow_network"]:
        sys.exit(
            "this system does not let a process give up the network (unshare is refused); allow user namespaces, "
            "use another sandbox, or set sandbox_kwargs: {allow_network: true}"
        )
    _limit(request)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after the change of user, which would take it back
    _see_only(libc, [sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64"], ".")
    signal.setitimer(signal.ITIMER_REAL, request["wall_s"])  # its default action is the end of the process
    os.write(request["ready_fd"], b"ready")
    os.close(request["ready_fd"])
    sys.argv = ["program.py"]
    runpy.run_path("program.py", run_name="__main__")


def _become_nobody() -> None:
    if os.getuid() != 0:
        return
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    if not os.access(os.__file__, os.R_OK):
        sys.exit(UNREADABLE)


def _see_only(libc: ctypes.CDLL, readable: list[str], own: str) -> None:
    """Read beneath some folders, do anything beneath one, nothing elsewhere; signal nobody else where it can be ruled.

    On kernels without Landlock, no change.
    """
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    everything = (1 << NUM_RIGHTS.get(version, MOST_RIGHTS)) - 1
    # Files, network, scopes; older kernels know the first only.
    handled = (ctypes.c_uint64 * 3)(everything, 0, ABSTRACT_SOCKETS | SIGNALS)
    known = ctypes.sizeof(handled) if version >= SCOPES_FROM else 8
    ruleset = libc.syscall(CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(known), 0)
    rules = [(folder, EXECUTE | READ_FILE | READ_DIR) for folder in readable if Path(folder).is_dir()]
    for folder, allowed in [*rules, (own, everything)]:
        descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        libc.syscall(ADD_RULE, ruleset, 1, ctypes.byref(Rule(allowed, descriptor)), 0)
        os.close(descriptor)
    if libc.syscall(RESTRICT_SELF, ruleset, 0) != 0:
        sys.exit("the kernel has Landlock and refused to use it")
    os.close(ruleset)


def _limit(request: dict[str, int]) -> None:
    resource.setrlimit(
        resource.RLIMIT_CPU, (request["cpu_s"], request["cpu_s"] + 1)
    )  # a signal of its own, then the end
    limits = {
        resource.RLIMIT_AS: request["memory_bytes"],
        resource.RLIMIT_FSIZE: max(request["file_bytes"], request["output_bytes"]),
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,  # no process and no thread beside it
    }
    for what, most in limits.items():
        resource.setrlimit(what, (most, most))


if __name__ == "__main__":
    main()
