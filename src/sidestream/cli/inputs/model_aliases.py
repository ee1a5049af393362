"""Names of the user's own for models, kept with the other preferences."""

import difflib
import re

from sidestream.cli import preferences
from sidestream.cli.inputs.default_model import check_model, names_of_providers
from sidestream.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def model_of(text: str) -> str:
    """The model string behind an alias; any other text as it is."""
    return preferences.load().aliases.get(text, text)


def add(name: str, model: str) -> str:
    """Stores an alias, in place of one of the same name; returns its model string.

    Raises ConfigurationError for a name that cannot be one or is that of a provider, and for an unknown provider.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot be an alias: use letters, digits, '.', '_' and '-'")
    if name in names_of_providers():
        raise ConfigurationError(f"{name!r} is the name of a provider; choose another alias")
    check_model(model)
    preferences.change(aliases={**preferences.load().aliases, name: model})
    return model


def remove(name: str) -> None:
    """Forgets an alias. Raises ConfigurationError for an unknown one, with the nearest name."""
    known = preferences.load().aliases
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(known)) or 'none'}"
        raise ConfigurationError(f"no alias {name!r}; {hint}")
    preferences.change(aliases={key: model for key, model in known.items() if key != name})
