"""Life inside a TorchServe worker process: the `ts` adapter, shutdown, threads, telemetry."""
