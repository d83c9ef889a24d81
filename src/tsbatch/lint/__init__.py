"""tsbatch lint: what TorchServe will really do with a configuration, before it does it.

The way of one run (:mod:`tsbatch.lint.run`)::

    paths -> sources (files, inner files of archives) -> documents -> rules -> findings -> output or fixes

A rule is a function registered with :func:`tsbatch.lint.registry.rule`; each looks at one kind of document:
config.properties, model-config.yaml, a handler module, metrics.yaml, a requirements file, an archive, or the set
of everything that was given.
"""

from __future__ import annotations
