"""All routes of the OpenAI face."""

from __future__ import annotations

from api.openai import batches, completions, files, models, uploads

ROUTERS = (files.router, uploads.router, batches.router, completions.router, models.router)
