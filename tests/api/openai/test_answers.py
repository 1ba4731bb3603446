"""What an answer looks like in the output file."""

from __future__ import annotations

import json

from tests.api.openai.office import Desk
from tests.api.openai.rig import chat


def test_the_same_rows_give_the_same_bytes(desk: Desk) -> None:
    done = desk.run([chat("a", "one", n=2, logprobs=True, top_logprobs=1)])
    first, second = (desk.http.get(f"/v1/files/{done['output_file_id']}/content").content for _ in range(2))
    assert first == second
    choices = json.loads(first)["response"]["body"]["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert choices[1]["logprobs"]["content"][0] == {
        "token": "O", "logprob": -0.5, "bytes": [79], "top_logprobs": [{"token": "O", "logprob": -0.5, "bytes": [79]}]
    }  # fmt: skip


def test_a_line_has_no_character_that_could_end_it(desk: Desk) -> None:
    """JSON allows some that Python's splitlines, and so a client's iter_lines, takes for the end of a line."""
    text = "a\u2028b\u2029c\x85d\ne"
    done = desk.run([chat("a", text)])
    (line,) = desk.http.get(f"/v1/files/{done['output_file_id']}/content").text.splitlines()
    assert json.loads(line)["response"]["body"]["choices"][0]["message"]["content"] == text.upper()


def test_completions(desk: Desk) -> None:
    body = {"model": "fake", "prompt": "abc", "logprobs": 1}
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    done = desk.run([request], endpoint="/v1/completions")
    body = desk.lines(done["output_file_id"])[0][0]["response"]["body"]
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {
            "index": 0,
            "text": "ABC",
            "finish_reason": "stop",
            "logprobs": {
                "tokens": ["A", "B", "C"],
                "token_logprobs": [-0.5] * 3,
                "top_logprobs": [{"A": -0.5}, {"B": -0.5}, {"C": -0.5}],
                "text_offset": [0, 1, 2],
            },
        }
    ]
