"""The grammar of `nllb-fleet local …`. What the commands do is in `local`."""

from __future__ import annotations

import argparse

from nllb_operator.cli import local
from nllb_operator.cli.parsing import Commands, command, count, seconds, translate_options
from nllb_operator.cli.translate import translate_texts

_TRANSLATE_EXAMPLES = """
nllb-fleet local translate --from eng_Latn --to deu_Latn "Do you find the house?"
nllb-fleet local translate --from eng_Latn --to deu_Latn --adapter formal -v < lines.txt
"""
_DELETE_EXAMPLES = """
nllb-fleet local delete lora formal
nllb-fleet local delete -f examples/loraadapter.yaml
"""


def add_commands(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add every command of `nllb-fleet local`."""
    process = (_up(commands), _down(commands))
    objects = (_apply(commands), _get(commands), _delete(commands), _wait(commands))
    others = (_logs(commands), _translate(commands))
    for parser in (*process, *objects, *others):
        parser.add_argument(
            "--state", metavar="DIR", help="folder of the local fleet (default ~/.nllb-fleet)"
        )
    for parser in (*objects, *others):
        parser.add_argument("-n", "--namespace", default="default", help="namespace (default: default)")


def _up(commands: Commands[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = command(
        commands, "up", "start the local operator", "nllb-fleet local up --volume models=examples"
    )
    add = parser.add_argument
    help_text = "the claim NAME is this folder (repeatable; remembered)"
    add("--volume", action="append", default=[], metavar="NAME=FOLDER", help=help_text)
    add("--gpus", type=count, metavar="N", help="GPUs that pods may ask for (default 0; remembered)")
    add("--foreground", action="store_true", help="stay, and log to the terminal")
    parser.set_defaults(action=local.up)
    return parser


def _down(commands: Commands[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = command(commands, "down", "stop the local operator and its pods; the objects stay")
    parser.add_argument("--purge", action="store_true", help="delete the objects and all other state, too")
    parser.set_defaults(action=local.down)
    return parser


def _apply(commands: Commands[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    example = "nllb-fleet local apply -f examples/nllbdeployment.yaml"
    parser = command(commands, "apply", "create or change objects", example)
    _files(parser, required=True)
    parser.set_defaults(action=local.apply)
    return parser


def _get(commands: Commands[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    example = "nllb-fleet local get\nnllb-fleet local get lora formal -o yaml"
    parser = command(commands, "get", "show objects", example)
    types = "nllb, lora, pods, services, events, … (default nllb,lora,pods)"
    parser.add_argument("what", nargs="*", metavar="TYPE[,TYPE] [NAME]", help=types)
    formats = ("table", "wide", "yaml", "json", "name")
    parser.add_argument("-o", "--output", choices=formats, default="table", help="how to show them")
    parser.set_defaults(action=local.get)
    return parser


def _delete(commands: Commands[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = command(commands, "delete", "delete objects with everything they own", _DELETE_EXAMPLES)
    parser.add_argument("what", nargs="*", metavar="TYPE NAME", help="a type and names, or TYPE/NAME")
    _files(parser, required=False)
    parser.set_defaults(action=local.delete)
    return parser


def _wait(commands: Commands[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    example = "nllb-fleet local wait --for condition=Ready nllb/tiny lora/formal"
    parser = command(commands, "wait", "wait for a condition of objects", example)
    add = parser.add_argument
    add("what", nargs="+", metavar="TYPE/NAME", help="the objects")
    help_text = "what to wait for (default condition=Ready)"
    add("--for", dest="condition", default="condition=Ready", metavar="condition=TYPE|delete", help=help_text)
    add("--timeout", type=seconds, default=120.0, metavar="SECONDS", help="give up after (default 120)")
    parser.set_defaults(action=local.wait)
    return parser


def _logs(commands: Commands[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = command(commands, "logs", "print what a pod wrote")
    parser.add_argument("pod", metavar="POD", help="a pod's name, from `get pods`")
    parser.set_defaults(action=local.logs)
    return parser


def _translate(commands: Commands[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = command(commands, "translate", "translate texts, or the lines of stdin", _TRANSLATE_EXAMPLES)
    parser.add_argument("--fleet", metavar="NAME", help="the NllbDeployment (default: the only one)")
    translate_options(parser)
    parser.set_defaults(action=lambda parsed: translate_texts(local.endpoint(parsed), parsed))
    return parser


def _files(parser: argparse.ArgumentParser, required: bool) -> None:
    help_text = "YAML with one or more objects, - for stdin (repeatable)"
    parser.add_argument(
        "-f", "--filename", action="append", default=[], required=required, metavar="FILE", help=help_text
    )
