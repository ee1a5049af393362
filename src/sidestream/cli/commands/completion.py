"""The `sidestream completion` command."""

import sys

import click

from sidestream.cli import exit_codes

VARIABLE = "_SIDESTREAM_COMPLETE"
"""Variable with which the script requests completions, by click's convention."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print a shell's completion script.

    \b
    bash:  source <(sidestream completion bash)        in ~/.bashrc
    zsh:   source <(sidestream completion zsh)         in ~/.zshrc
    fish:  sidestream completion fish > ~/.config/fish/completions/sidestream.fish
    """  # noqa: D301 - click needs the backspace
    from click.shell_completion import get_completion_class

    from sidestream.cli.display.screen import write

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, "sidestream", VARIABLE)
    # Not `source()`, which starts bash to check its version: another shell may install the script.
    write(sys.stdout, script.source_template % script.source_vars() + "\n")
    return exit_codes.OK
