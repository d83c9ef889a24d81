"""``tsbatch kserve``: an archive as an InferenceService, with everything that its pods need.

::

    check ── facts ──┬── resources ──┐
                     ├── probes ─────┤
                     ├── scaling ────┴── service    (inference-service.yaml)
                     ├── server                     (storage/config/config.properties)
                     └── image                      (Dockerfile, requirements.txt, worker/)
                                   folder writes them all
"""
