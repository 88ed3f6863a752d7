"""Started before a pod's program: ties its life to the parent's, then becomes the program.

Runs as a plain script (`python -I -S pod_launch.py PARENT_PID PROGRAM …`), so it costs a few milliseconds.
The kernel kills the program the moment its parent dies, however it dies: no orphan pods. Knows nothing else.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for the signal, check that the parent did not die before that, then exec."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot start {command[0]!r}: {error.strerror}", file=sys.stderr)
        os._exit(127)


if __name__ == "__main__":
    main()
