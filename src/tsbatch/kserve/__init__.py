"""``tsbatch kserve``: write an InferenceService for an archive, with everything that its pods need.

::

    check ── archive_facts ──┬── pod_resources ──┐
                             ├── health_probes ──┤
                             ├── scaling ────────┴── inference_service    (inference-service.yaml)
                             ├── server_config                            (storage/config/config.properties)
                             └── image                                    (Dockerfile, requirements.txt, worker/)
                                          output_folder writes them all
"""
