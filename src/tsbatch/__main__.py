"""``python -m tsbatch``: the same as the command ``tsbatch``."""

from __future__ import annotations

import sys

from tsbatch.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
