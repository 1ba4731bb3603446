"""Run the demo and draw what it prints as docs/demo.svg.

python -m tests.bench.picture
"""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 92


def main() -> int:
    command = [sys.executable, "-c", "from api.cli import app; app()", "demo"]
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
    shown = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    console.print("[bold]$ make demo[/bold]")
    console.print(Text.from_ansi(shown.replace(f"{ROOT}/", "")))
    console.save_svg(str(ROOT / "docs/demo.svg"), title="nightmill")
    return 0


if __name__ == "__main__":
    sys.exit(main())
