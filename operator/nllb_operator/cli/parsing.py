"""Pieces of the command line's grammar that several commands share."""

from __future__ import annotations

import argparse
import textwrap

Commands = argparse._SubParsersAction


def command(
    commands: Commands[argparse.ArgumentParser], name: str, text: str, examples: str = ""
) -> argparse.ArgumentParser:
    """A sub-command with one line of help and examples that can be copied."""
    epilog = "examples:\n" + textwrap.indent(examples.strip("\n"), "  ") if examples else None
    return commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def count(text: str) -> int:
    """A number of 0 or more, for `type=`."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def seconds(text: str) -> float:
    """A time of 0 seconds or more, for `type=`."""
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def translate_options(parser: argparse.ArgumentParser) -> None:
    """What both `translate` commands take."""
    add = parser.add_argument
    add("text", nargs="*", metavar="TEXT", help="texts to translate (default: each line of stdin)")
    add("--from", dest="source", metavar="CODE", help="source language, as eng_Latn (default: the fleet's)")
    add("--to", dest="target", metavar="CODE", help="target language, as deu_Latn (default: the fleet's)")
    add("--adapter", metavar="NAME", help="served name of a LoraAdapter (default: the active one, if any)")
    add("--beams", type=count, default=1, metavar="N", help="width of the beam search (default 1: greedy)")
    add("--timeout", type=seconds, default=120.0, metavar="SECONDS", help="longest wait (default 120)")
    add("-v", "--verbose", action="store_true", help="say which pod and adapter version answered")
