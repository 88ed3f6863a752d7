"""The program `nllb-fleet`: its two groups of commands, and how errors end it.

Knows how arguments are written. What a command does is in `local` and `translate`; an error becomes one
line and exit code 1 here and nowhere else.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from nllb_operator.cli import local_parser
from nllb_operator.cli.client import CommandError
from nllb_operator.cli.console import say
from nllb_operator.cli.parsing import command, translate_options
from nllb_operator.cli.translate import translate_texts

_LOCAL_EXAMPLES = """
nllb-fleet local up --volume models=examples
nllb-fleet local apply -f examples/nllbdeployment.yaml -f examples/loraadapter.yaml
nllb-fleet local wait nllb/tiny lora/formal
nllb-fleet local get
nllb-fleet local translate --from eng_Latn --to deu_Latn "Do you find the house?"
nllb-fleet local down
"""
_REMOTE_EXAMPLES = """
nllb-fleet translate --url http://127.0.0.1:8000 --from eng_Latn --to deu_Latn "Do you find the house?"
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. Exit codes: 0 done, 1 not done (stderr says why), 2 wrong arguments, 130 Ctrl-C."""
    parsed = make_parser().parse_args(arguments)
    try:
        parsed.action(parsed)
    except CommandError as error:
        say(f"error: {error}")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of our output has gone, as in `… | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


def make_parser() -> argparse.ArgumentParser:
    """The whole grammar of the command line."""
    parser = argparse.ArgumentParser("nllb-fleet", description="Fleets of pods that translate with NLLB-200.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    local = command(commands, "local", "a fleet on this machine, whose pods are processes", _LOCAL_EXAMPLES)
    local_parser.add_commands(local.add_subparsers(title="commands", required=True, metavar="COMMAND"))
    remote = command(commands, "translate", "translate by the API of any fleet", _REMOTE_EXAMPLES)
    remote.add_argument("--url", required=True, help="address of the fleet, http://HOST:PORT")
    translate_options(remote)
    remote.set_defaults(action=lambda parsed: translate_texts(parsed.url, parsed))
    return parser
