"""tsbatch lint: how TorchServe will actually interpret a configuration, before the server starts.

The stages of one run (:mod:`tsbatch.lint.run`)::

    paths -> sources (files, inner files of archives) -> documents -> rules -> findings -> output or fixes

A rule is a function registered with :func:`tsbatch.lint.registry.rule`; each examines one kind of document:
config.properties, model-config.yaml, a handler module, metrics.yaml, a requirements file, an archive, or everything
that belongs to one server.
"""

from __future__ import annotations
