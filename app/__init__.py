"""The run: configuration, engines, stream, trainer, jobs."""
