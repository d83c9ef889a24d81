#!/usr/bin/env python3
"""From a clone to answers in two minutes: pack a real model, serve it in batches, and see where the time goes.

    python scripts/quickstart.py          does it all and leaves nothing behind
    python scripts/quickstart.py --keep   leaves the server up and says how to talk to it

Needs nothing but Python 3.10 or newer: it makes ``.venv`` itself, and takes Java from there if the machine has none.
"""

from __future__ import annotations

import argparse
import sys

import _venv

EXTRAS = "transformers,serve,desk"


def main(words: list[str]) -> int:
    """Read the options, then do the job inside ``.venv``."""
    parser = argparse.ArgumentParser(description="Pack, serve and time all-MiniLM-L6-v2.")
    parser.add_argument("--keep", action="store_true", help="leave the server up and print how to talk to it")
    parser.add_argument(
        "--token-minutes", type=int, metavar="N", help="how long TorchServe's tokens live; they are renewed in time"
    )
    chosen = parser.parse_args(words)
    _venv.enter(EXTRAS)
    import _quickstart_job

    return _quickstart_job.run(keep=chosen.keep, token_minutes=chosen.token_minutes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
