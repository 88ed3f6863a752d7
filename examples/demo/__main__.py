"""A fleet in a minute: on this machine alone (`local`), or by kubectl on a real API server (`kubernetes`).

Both tell the same story (`story`) on their own stage. Nothing is left behind, not even after Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import time

from nllb_operator import machine

from .kubernetes_stage import KubernetesStage
from .local_stage import LocalStage
from .stage import DemoFailed, say
from .story import tell

_STAGES = {"local": LocalStage, "kubernetes": KubernetesStage}


def main() -> int:
    """Tell the story; 0 if every check held, 1 if not, 130 after Ctrl-C."""
    if len(sys.argv) != 2 or sys.argv[1] not in _STAGES:
        say(f"usage: python -m demo {' | '.join(_STAGES)}")
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    began = time.monotonic()
    stage = _STAGES[sys.argv[1]]()
    try:
        tell(stage)
    except DemoFailed as problem:
        for log in stage.logs():
            say(f"\n{log}, its end:\n{machine.tail(log) or '(empty)'}")
        say(f"\nThe demo failed: {problem}")
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted")
        return 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it behind
        stage.clean_up()
    say(f"\nDone in {time.monotonic() - began:.0f} s, nothing left behind.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
