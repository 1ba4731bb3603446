"""The command line `nightmill`, built on the client. `app` is its entry point."""

from api.cli.main import app

__all__ = ["app"]
