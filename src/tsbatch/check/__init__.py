"""``tsbatch check``: load an archive in a fresh process, as a worker would, and send it requests.

::

    run.check ── supervisor ══ child_process ── phases, probes     (the fresh process)
        │             │ events, memory
      page ◄── findings, advice
"""
