"""The command `bisect-run`."""

from .bisect_commits import STOP, add_parser
from .bisect_commits import run_main as main

__all__ = ["STOP", "add_parser", "main"]
