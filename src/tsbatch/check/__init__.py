"""``tsbatch check``: an archive loaded and asked in a fresh process, as a worker would.

::

    checking.check ── unpacked ── process.started ══ worker_side ── phases, probes     (the fresh process)
         │                             │ events, memory
       report  ◄── advice ◄────────────┘
"""
