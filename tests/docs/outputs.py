"""`python -m tests.docs.outputs` runs every recipe with the demo model and writes docs/outputs.md: what it answered.

The blocks of the page are what is run. tests/docs/test_outputs.py does it again and compares.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from tests.docs.markdown import table
from tests.docs.pages import DOCS, Block, execute

PAGE = "outputs.md"
HEAD = """<!-- Written by `python -m tests.docs.outputs`: the answers are the model's. -->

# Real outputs

Every recipe over the same four rows with the demo model, SmolLM2-135M: the smallest that does anything, in fp32,
greedily. Nothing was chosen or mended: its mistakes are here too, and say why larger models exist. The fourth row has
no text and becomes an error row, except under a template, which has words of its own.

"""
ROWS = """import json

import pyarrow as pa
import pyarrow.parquet as pq

texts = [
    "My invoice shows 49 euros twice. Please refund one of them.",
    "The app crashes when I open the settings on my phone.",
    "Where can I change the delivery address of my order?",
    "",
]
chats = [json.dumps([{"role": "user", "content": f"{text} What is this customer's problem?"}]) for text in texts[:3]]
chats.append("no messages")
pq.write_table(pa.table({"id": [1, 2, 3, 4], "text": texts, "messages": chats}), "tickets.parquet")

schema = {
    "type": "object",
    "properties": {"topic": {"enum": ["billing", "bug", "question"]}, "amount": {"type": ["number", "null"]}},
    "required": ["topic", "amount"],
}
with open("ticket.json", "w") as file:
    json.dump(schema, file)

with open("requests.jsonl", "w") as file:
    for i, text in enumerate(texts[:3]):
        messages = [{"role": "user", "content": f"Answer this customer in one sentence. {text}"}]
        body = {"model": "smollm2-135m", "messages": messages, "max_tokens": 40, "temperature": 0}
        line = {"custom_id": f"ticket-{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        file.write(json.dumps(line) + "\\n")
"""


@dataclass(frozen=True, slots=True)
class Example:
    """A recipe's command, the folder it writes, and which columns of it are shown."""

    recipe: str
    options: str
    columns: tuple[str, ...]

    @property
    def command(self) -> str:
        return f"nightmill run tickets.parquet --recipe {self.recipe} {self.options} --output {self.recipe}/\n"


EXAMPLES = (
    Example("label", "--labels billing,bug,question", ("id", "label", "confidence", "error")),
    Example("summarize", "--max-words 12", ("id", "output", "finish_reason", "error")),
    Example("extract", "--schema ticket.json --max-tokens 60", ("id", "topic", "amount", "finish_reason", "error")),
    Example(
        "generate", "--template 'Write a short reply to this customer. {{ text }}' --max-tokens 40",
        ("id", "output", "finish_reason", "error"),
    ),
    Example("chat", "--max-tokens 40", ("id", "output", "finish_reason", "error")),
)  # fmt: skip
BATCH = "nightmill run-batch -i requests.jsonl -o answers.jsonl\n"


def render(environment: dict[str, str]) -> str:
    """The page, from a run of all of it. Takes a minute or two."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [HEAD, _run("python", ROWS, folder, environment)]
        for example in EXAMPLES:
            parts += [f"## {example.recipe}\n\n", _run("sh", example.command, folder, environment)]
            rows = ds.dataset(folder / example.recipe, format="parquet").to_table().to_pylist()
            parts.append(
                table(example.columns, [[_shown(row[name]) for name in example.columns] for row in rows]) + "\n"
            )
        parts += ["## openai\n\n", _run("sh", BATCH, folder, environment)]
        answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
        parts.append(table(("custom_id", "content", "finish_reason"), [_answer(line) for line in answers]))
    return "".join(parts)


def _run(language: str, code: str, folder: Path, environment: dict[str, str]) -> str:
    execute(Block(PAGE, language, code, None), folder, environment)
    return f"```{language}\n{code}```\n\n"


def _answer(line: dict[str, Any]) -> tuple[str, str, str]:
    choice = line["response"]["body"]["choices"][0]
    return line["custom_id"], _shown(choice["message"]["content"]), choice["finish_reason"]


def _shown(value: Any) -> str:
    """As a reader sees it: two digits of a probability, `code: message` of an error."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return f"`{value['code']}`: {value['message']}"
    return f"{value:.2f}" if isinstance(value, float) else str(value).replace("<", "&lt;")


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        (DOCS / PAGE).write_text(render({"NIGHTMILL_HOME": home}))


if __name__ == "__main__":
    main()
