#!/usr/bin/env python3
"""Go from a clone to answers in two minutes: package a real model, serve it in batches, and see where the time goes.

    python scripts/quickstart.py          run everything and leave nothing behind
    python scripts/quickstart.py --keep   leave the server running and print the commands to use it

The only prerequisite is Python 3.10 or newer: the script creates ``.venv``, and uses the Java installed there if the
machine has none.
"""

from __future__ import annotations

import argparse
import sys

import _venv

EXTRAS = "transformers,serve,desk"


def main(words: list[str]) -> int:
    """Read the options, then run the quickstart inside ``.venv``."""
    parser = argparse.ArgumentParser(description="Package, serve and time all-MiniLM-L6-v2.")
    parser.add_argument("--keep", action="store_true", help="leave the server running and print the commands to use it")
    parser.add_argument(
        "--token-minutes",
        type=int,
        metavar="N",
        help="lifetime of TorchServe's tokens in minutes; they are renewed before they expire",
    )
    chosen = parser.parse_args(words)
    _venv.enter(EXTRAS)
    import _quickstart_job

    return _quickstart_job.run(keep=chosen.keep, token_minutes=chosen.token_minutes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
