"""The exit codes of all commands.

====  =====================================
code  meaning
====  =====================================
0     success
1     findings, or worse than before
2     wrong usage or bad input
3     the server, a worker or tsbatch failed
130   interrupted with Ctrl-C
====  =====================================
"""

from __future__ import annotations

from typing import Final

FINE: Final = 0
FINDINGS: Final = 1
BAD_INPUT: Final = 2
FAILED: Final = 3
STOPPED: Final = 130
