"""What is wrong with a model's JSON, in words that the model can act on."""

from collections.abc import Iterable, Sequence

from sidestream.errors import SidestreamError
from sidestream.jsontext import shown

MAX_PROBLEMS = 20
MISSING = "required, but missing"


class OutputError(SidestreamError, ValueError):
    """An answer does not fit its type. `problem` says where and why, in words that a model can act on."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = str(self)


def not_json(body: str, error: ValueError | RecursionError) -> OutputError:
    """The error for an answer that is not JSON."""
    from json import JSONDecodeError

    near = body[error.pos : error.pos + 40] if isinstance(error, JSONDecodeError) else ""
    where = f", before {shown(near)}" if near else ""
    return OutputError(f"The answer is not JSON: {error if body else 'it is empty'}{where}.")


def misfit(problems: Sequence[str]) -> OutputError:
    """The error for JSON that does not fit its schema."""
    return OutputError(listing("The answer does not fit its schema:", problems))


def listing(headline: str, problems: Sequence[str]) -> str:
    """A headline and one line for each problem, up to a limit."""
    more = [f"- and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
    return "\n".join([headline, *problems[:MAX_PROBLEMS], *more])


def problem_at(path: str, what: str, whole: str = "answer") -> str:
    """One line of a listing; `whole` names the value itself."""
    return f"- {path.lstrip('.') or whole}: {what}"


def path_of(steps: Iterable[str | int]) -> str:
    """`.cities[0].name` for the keys and indices that lead to a value."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
