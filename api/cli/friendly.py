"""What every command shares: where it prints, and how an error looks to a person."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, NoReturn, ParamSpec

import typer
from pydantic import ValidationError
from pydantic_core import to_jsonable_python
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from api.cli import serving
from api.cli.options import OptionError
from api.cli.run import Exit
from api.embedded.children import ChildError
from api.embedded.lock import HomeInUseError
from api.embedded.stack import PortTakenError
from api.problem import Problem
from api.transport import ClientError, RequestRefused, ResultsPartial
from db.errors import DomainError, ModelMissing
from db.redaction import shown

EPILOG = (
    "Exit status: 0 done; 1 the job failed or was cancelled; 2 an option, the input or the job is wrong; 3 rows failed "
    "(with --strict); 4 the service, the model or the home cannot be used; 130 interrupted."
)
# Progress and messages go to stderr, so that stdout carries only what a script would read.
console = Console(stderr=True)
out = Console()
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else, on standard output.")]
Url = Annotated[
    str | None, typer.Option(help="Address of a running service; default: NIGHTMILL_URL, then this home's.")
]
P = ParamSpec("P")


def friendly(command: Callable[P, None]) -> Callable[P, None]:
    """Errors that a person can act on become one message and an exit status."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with serving.interruptible():
                command(*args, **kwargs)
        except KeyboardInterrupt:
            console.print("interrupted", style="yellow")
            raise typer.Exit(Exit.INTERRUPTED) from None
        except ResultsPartial as error:
            fail(f"job {error.job_id} is {error.status}: --partial gives what is finished so far", Exit.USAGE)
        except RequestRefused as error:
            fail(_explain(error.problem), Exit.UNAVAILABLE if error.problem.status >= 500 else Exit.USAGE)
        except (OptionError, DomainError) as error:
            fail(str(error), Exit.UNAVAILABLE if isinstance(error, ModelMissing) else Exit.USAGE)
        except ValidationError as error:
            lines = [f"NIGHTMILL_{str(item['loc'][0]).upper()}: {item['msg']}" for item in error.errors()]
            fail("\n".join(lines), Exit.USAGE)
        except HomeInUseError as error:
            fail(f"{error}; use that service, wait for it to end, or set another NIGHTMILL_HOME", Exit.UNAVAILABLE)
        except (ClientError, ChildError, PortTakenError, OSError, SQLAlchemyError) as error:
            fail(str(error), Exit.UNAVAILABLE)

    return wrapped


def print_json(value: object) -> None:
    """What `--json` prints: models, and lists and dicts of them, as one document. Messages go to standard error."""
    out.print_json(data=to_jsonable_python(value))


def answer(json: bool, value: object, text: str) -> None:
    """What a command is run for, on standard output: `value` as a JSON document, or `text` for people and scripts."""
    if json:
        print_json(value)
    else:
        out.print(text, highlight=False, soft_wrap=True)


def fail(message: str, status: Exit) -> NoReturn:
    console.print(f"error: {shown(message)}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(status) from None


def _explain(problem: Problem) -> str:
    """The server's words, with the field in front unless they begin with it."""
    named = problem.field is not None and not problem.detail.startswith(problem.field)
    return f"{problem.field}: {problem.detail}" if named else problem.detail
