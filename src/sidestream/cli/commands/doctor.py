"""`sidestream doctor`: what is installed, what is configured, what answers, and what to do about the rest."""

import sys

import click

from sidestream.cli import exit_codes


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print each finding as a line of JSON.")
@click.option("--mcp", metavar="FILE", help="Also start the MCP servers of this mcp.json; - finds it in this folder.")
def doctor(as_json: bool, mcp: str | None) -> int:
    """Check the installation, keys, stores and servers.

    Exits with 1 if something that is configured does not work; what is merely not there is listed.
    """
    from sidestream import jsontext
    from sidestream.cli.commands.doctor_checks import examine
    from sidestream.cli.display.screen import one_line, write
    from sidestream.cli.interrupts import run_async

    findings = run_async(examine(mcp))
    topic = ""
    for finding in findings:
        if as_json:
            write(sys.stdout.buffer, jsontext.dumps(finding) + b"\n")
            continue
        if finding.topic != topic:
            topic = finding.topic
            write(sys.stdout, f"{topic}\n")
        advice = f" ({finding.advice})" if finding.advice else ""
        write(sys.stdout, f"  {finding.state:<7} {one_line(finding.text + advice, 300)}\n")
    broken = sum(finding.state == "broken" for finding in findings)
    if broken and not as_json:
        click.echo(f"{broken} problem{'' if broken == 1 else 's'} found", err=True)
    return exit_codes.FAILED if broken else exit_codes.OK
