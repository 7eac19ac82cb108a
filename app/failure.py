"""Why something failed, in one line for a person: the innermost error, and what to change where something ran out."""

import errno
import re
from collections.abc import Iterator

ERROR_LINE = re.compile(
    r"^(?:\x1b\[\d+m)?(?:[\w.]*\.)?([A-Z]\w*(?:Error|Exception|Weights|Stalled))(?:\(.*?\))?: (.+)$"
)
WRAPPERS = ("RayTaskError", "UserCodeException")
"""What Ray puts around the error of a task, and Ray Data around that of a stage. They say nothing themselves."""
ACTOR_FIELD = re.compile(r"^\s*(class_name|pid): (\S.*)$", re.MULTILINE)
"""How Ray describes an actor that died."""
NODE_MEMORY = re.compile(r"Memory on the node .*? was (\S+) used / (\S+) limit")
CHOSEN = re.compile(r"Selected to kill: .*?task name=([^,]+),.*? pid=(\d+), actual memory used=([^,]+),")
"""How Ray describes what it ended because a machine was short of memory."""

TRAINER = "lower seq_len, set gradient_checkpointing: true, or raise num_workers"
ENGINE_ON_GPU = "lower engine.gpu_memory_utilization, engine.max_num_seqs or engine.max_model_len"
MACHINE = "lower engine.kv_cache_mb, num_engines, num_workers or seq_len, or use a machine with more memory"
ADVICE = f"if the operating system did it for want of memory, {MACHINE}"
KILLED = f"it was killed or crashed; {ADVICE}"
ENDED = re.compile(r"Job entrypoint command failed with exit code (-?\d+)")
"""How Ray's message begins when the driver ended; the last lines of its log follow."""
OF_OTHERS = re.compile(
    r"\(raylet\b|\(.+? pid=\d+.*?\) |(?:[\d-]+ [\d:,]+\s+)?(?:DEBUG|INFO|WARNING)\b|"
    r"Running entrypoint for job |run directory: "
)
"""Lines of a driver's log that cannot say why it failed: those of other processes, and those that are no errors."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LOG_CHARS = 20_000  # how much of a log Ray gives
LAST_LINES, LAST_CHARS = 12, 2000
SHORTAGES = [
    (
        r"No available memory for the cache blocks|KV cache is needed",
        "an engine's key-value cache is too small: raise engine.kv_cache_mb (on a GPU engine.gpu_memory_utilization), "
        "or lower engine.max_model_len",
    ),
    (r"Free memory on device", f"an engine's GPU is short of memory: {ENGINE_ON_GPU}"),
    (
        r"(?:CUDA|HIP) out of memory",
        f"a GPU is out of memory: {TRAINER}; where an engine shares the GPU, {ENGINE_ON_GPU}",
    ),
    (
        r"low on memory|NODE_OUT_OF_MEMORY|can't allocate memory|Cannot allocate memory|std::bad_alloc|\bMemoryError\b",
        f"the machine is out of memory: {MACHINE}",
    ),
    (r"\bObjectStoreFullError\b", "Ray's object store is full: start Ray with a larger --object-store-memory"),
    (rf"\[Errno {errno.ENOSPC}\]|No space left on device", "the disk is full: free some space, then resume the run"),
    (rf"\[Errno {errno.EROFS}\]", "the run directory cannot be written: make it writable, then resume the run"),
    (r"died unexpectedly", KILLED),
]
"""The words in which Ray, vLLM, torch and the operating system say what ran out → what to do. The first counts."""


def reason_of(error: BaseException) -> str:
    """What a person needs to read first, without the frames around it."""
    text = "\n".join(_texts(error))
    remedy = shortage(text)
    return f"{_line(error, text)}; {remedy}" if remedy else _line(error, text)


def reason_of_job(message: str) -> str:
    """Why a Ray job failed whose driver could not say it: Ray's message, which ends with the last lines of its log."""
    is_cut = len(message) > LOG_CHARS
    message = COLOUR.sub("", message)
    ended = ENDED.match(message)
    if ended and int(ended[1]) < 0:  # its log was cut off anywhere
        signal = -int(ended[1])
        return f"its driver was killed (signal {signal}): resume the run to go on from its last checkpoint; {ADVICE}"
    lines = message.splitlines()[1 + is_cut if ended else 0 :]  # of a cut log the first line is a part of one
    own = [line for line in lines if line.strip() and not OF_OTHERS.match(line)]
    text = "\n".join(own)
    if "died unexpectedly" in text:
        return f"{_death(text)}; {shortage(text)}"
    if not own:
        return f"its driver ended with exit code {ended[1]} without saying why; see the log" if ended else message
    words = "\n".join(own[-LAST_LINES:])[-LAST_CHARS:]  # the error itself stands last
    remedy = shortage(text)
    return f"{words}\n{remedy}" if remedy else words


def shortage(text: str) -> str | None:
    """What ran out, and what to do about it; None where nothing is known to have run out."""
    return next((remedy for words, remedy in SHORTAGES if re.search(words, text)), None)


def _texts(error: BaseException) -> Iterator[str]:
    """The error, and those that it came from."""
    one: BaseException | None = error
    while one is not None:
        yield f"{type(one).__name__}: {one}"
        yield from _of_workers(one)
        one = one.__cause__


def _of_workers(error: BaseException) -> list[str]:
    """What failed in the workers of Ray Train, whose own error has only the two ends of it."""
    return [str(failure) for failure in getattr(error, "worker_failures", {}).values()]


def _line(error: BaseException, text: str) -> str:
    """The innermost error's own line. Of a process that was ended, which it was: its error is in Ray's words."""
    if (memory := NODE_MEMORY.search(text)) and (chosen := CHOSEN.search(text)):
        who = f"{chosen[1].removesuffix('.__init__')} (pid {chosen[2]}, {chosen[3]})"
        return f"{who} was ended by Ray, because its machine had {memory[1]} of {memory[2]} in use"
    if "died unexpectedly" in text:
        return _death(text)
    if own := _error_lines("\n".join([str(error), *_of_workers(error)])):
        return own[-1]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"


def _error_lines(text: str) -> list[str]:
    """The lines of a traceback that name an error, but for wrappers where there is another one."""
    found = [match for line in text.splitlines() if (match := ERROR_LINE.match(line.strip()))]
    own = [match for match in found if match[1] not in WRAPPERS]
    return [f"{match[1]}: {match[2]}" for match in own or found]


def _death(text: str) -> str:
    """Ray's own text lists what it might have been, and says at the end what is rarely the cause."""
    said = dict(ACTOR_FIELD.findall(text))
    pid = f" (pid {said['pid']})" if "pid" in said else ""
    return f"{said.get('class_name', 'a process')}{pid} died unexpectedly"
